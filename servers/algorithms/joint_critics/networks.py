"""The networks of a team: an actor that all members share, and one or two critics."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def make_actor(input_dim: int, hidden_dim: int, output_dim: int) -> nn.Sequential:
    """From what a member sees ``[..., input_dim]`` to ``[..., output_dim]``, before ``tanh``."""
    return nn.Sequential(
        nn.Linear(input_dim, hidden_dim),
        nn.ReLU(),
        nn.Linear(hidden_dim, hidden_dim),
        nn.ReLU(),
        nn.Linear(hidden_dim, output_dim),
    )


class JointCritics(nn.Module):
    """Critics of the team, alike but for their first weights.

    Of two the lower value counts: Fujimoto et al. 2018 (arXiv 1802.09477), "clipped double Q".

    Args:
        input_dim: length of state, presence and joint action in a row.
        hidden_dim: units of both hidden layers.
        num: of critics, c.
    """

    def __init__(self, input_dim: int, hidden_dim: int, num: int) -> None:
        super().__init__()
        self.num = num
        self.layers = nn.Sequential(
            _ParallelLinear(num, input_dim, hidden_dim),
            nn.ReLU(),
            _ParallelLinear(num, hidden_dim, hidden_dim),
            nn.ReLU(),
            _ParallelLinear(num, hidden_dim, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Values ``[c, B]`` of inputs ``[B, input_dim]``."""
        values: Tensor = self.layers(x.expand(self.num, *x.shape))
        return values.squeeze(-1)


class _ParallelLinear(nn.Module):
    """Linear layers side by side, as one product ``[c, B, in]`` to ``[c, B, out]``."""

    def __init__(self, num: int, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(num_inputs)  # that of nn.Linear
        shape = num, num_inputs, num_outputs
        self.weight = nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num, 1, num_outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)
