"""MAPPO's critic: the value of a global state, in units that training keeps near 1."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
from ray.rllib.core.columns import Columns
from ray.rllib.core.models.base import ENCODER_OUT
from ray.rllib.core.models.catalog import Catalog
from torch import Tensor, nn

_SMALLEST_STD = 1e-4
"""Avoids a division by 0 while all returns have been equal."""


class ValueNormalizer(nn.Module):
    """The running mean and standard deviation of all returns seen so far.

    Yu et al. 2022, "value normalization". All returns count alike; the paper's own code, with its
    decay of 0.99999 an update, comes to the same. The three numbers are buffers, so that every
    checkpoint of the module has them.
    """

    count: Tensor
    mean: Tensor
    sum_of_squares: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("sum_of_squares", torch.zeros((), dtype=torch.float64))

    @property
    def std(self) -> Tensor:
        """The standard deviation, 1 before the first return."""
        if self.count == 0:
            return torch.ones_like(self.mean)
        return (self.sum_of_squares / self.count).sqrt().clamp(min=_SMALLEST_STD)

    def update(self, returns: Tensor) -> None:
        """Adds returns ``[N]`` to the statistics (Chan et al. 1983, parallel variance)."""
        if returns.numel() == 0:
            return
        returns = returns.double()
        num, mean = returns.numel(), returns.mean()
        total = self.count + num
        delta = mean - self.mean
        self.sum_of_squares += (returns - mean).square().sum()
        self.sum_of_squares += delta.square() * self.count * num / total
        self.mean += delta * num / total
        self.count.copy_(total)

    def normalize(self, returns: Tensor) -> Tensor:
        """Scales returns to mean 0 and deviation 1, float32 of the same shape."""
        return ((returns - self.mean) / self.std).float()

    def denormalize(self, values: Tensor) -> Tensor:
        """The inverse of `normalize`, float32 of the same shape."""
        return (values * self.std + self.mean).float()


class Critic(nn.Module):
    """``V``, an MLP like the actor's.

    Args:
        input_dim: length of what it reads.
        action_space: RLlib's catalog needs it.
        model_config: fields of RLlib's `DefaultModelConfig`.
        should_normalize: whether its output is in units of a `ValueNormalizer`.
    """

    def __init__(
        self,
        input_dim: int,
        action_space: spaces.Space,
        model_config: dict[str, Any],
        should_normalize: bool,
    ) -> None:
        super().__init__()
        space = spaces.Box(-float("inf"), float("inf"), (input_dim,))
        self.encoder = Catalog(space, action_space, model_config).build_encoder("torch")
        self.head = PPOCatalog(space, action_space, model_config).build_vf_head("torch")
        self.normalizer = ValueNormalizer() if should_normalize else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalised values ``[B]`` of inputs ``[B, input_dim]``."""
        values: Tensor = self.head(self.encoder({Columns.OBS: x})[ENCODER_OUT]).squeeze(-1)
        return values

    def values(self, x: Tensor) -> Tensor:
        """Values ``[B]`` in the units of rewards."""
        values: Tensor = self(x)
        return values if self.normalizer is None else self.normalizer.denormalize(values)

    def normalize(self, returns: Tensor) -> Tensor:
        """Returns in the units of `forward`."""
        return returns if self.normalizer is None else self.normalizer.normalize(returns)

    @torch.no_grad()
    def learn_units(self, returns: Tensor) -> None:
        """Adds returns ``[N]`` to the statistics without changing `values`.

        The last layer is rescaled to cancel the change of units: PopArt, van Hasselt et al. 2016
        (arXiv 1602.07714), equations 3 and 4. The first returns are an exception: before them
        there is nothing to preserve.
        """
        if self.normalizer is None:
            return
        is_first = bool(self.normalizer.count == 0)
        old_mean, old_std = self.normalizer.mean.clone(), self.normalizer.std.clone()
        self.normalizer.update(returns)
        if is_first:
            return
        mean, std = self.normalizer.mean, self.normalizer.std
        last = [layer for layer in self.head.modules() if isinstance(layer, nn.Linear)][-1]
        last.weight.mul_((old_std / std).float())
        last.bias.copy_((old_std * last.bias + old_mean - mean) / std)
