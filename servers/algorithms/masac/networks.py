"""The networks of a team: an actor that all members share, and a pair of critics."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def make_actor(input_dim: int, hidden_dim: int, action_dim: int) -> nn.Sequential:
    """From what a member sees ``[..., input_dim]`` to means and log-deviations ``[..., 2 d]``."""
    return nn.Sequential(
        nn.Linear(input_dim, hidden_dim),
        nn.ReLU(),
        nn.Linear(hidden_dim, hidden_dim),
        nn.ReLU(),
        nn.Linear(hidden_dim, 2 * action_dim),
    )


class TwinCritic(nn.Module):
    """Two critics of the team, ``Q_1`` and ``Q_2``, alike but for their first weights.

    Fujimoto et al. 2018 (arXiv 1802.09477), "clipped double Q": the lower value counts.

    Args:
        input_dim: length of state, presence and joint action in a row.
        hidden_dim: units of both hidden layers.
    """

    def __init__(self, input_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _PairedLinear(input_dim, hidden_dim),
            nn.ReLU(),
            _PairedLinear(hidden_dim, hidden_dim),
            nn.ReLU(),
            _PairedLinear(hidden_dim, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Values ``[2, B]`` of inputs ``[B, input_dim]``."""
        values: Tensor = self.layers(x.expand(2, *x.shape))
        return values.squeeze(-1)


class _PairedLinear(nn.Module):
    """Two linear layers as one product ``[2, B, in]`` to ``[2, B, out]``: half the calls."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(num_inputs)  # that of nn.Linear
        self.weight = nn.Parameter(torch.empty(2, num_inputs, num_outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(2, 1, num_outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)
