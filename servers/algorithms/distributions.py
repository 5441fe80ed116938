"""Distributions of actions: drawn in numpy, learned in torch, in few operations each.

`torch.distributions` checks and normalises its arguments again for each of the terms below; in an
update of a small network, starting an operation takes as long as computing it.

The *inputs* ``[..., k]`` of a distribution are the network's output for an action: logits, or means
and log-deviations; ``num_inputs`` is k. In numpy, ``best`` returns the most likely actions
``[B, ...]`` for inputs ``[B, k]``, ``draw`` draws actions, and ``log_prob`` returns the
log-probabilities, or log-densities, of actions, float32 ``[B]``. In torch, ``terms`` returns what
losses need, for the actions that were taken and, if a divergence is wanted, the inputs of the
distribution that acted.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from muxrl.protocol.dense import UNAVAILABLE
from muxrl.servers.agents.log_probs import log_probs_of

LOG_STD = -5.0, 2.0
"""Limits of the log-deviations of `squashed` actions, as in RLlib."""
_LOG_ROOT_2_PI = 0.5 * math.log(2 * math.pi)


class Terms(NamedTuple):
    """Terms of losses for each action, ``[...]`` each."""

    log_prob: Tensor
    entropy: Tensor
    kl: Tensor | None
    """KL(acted || learned); None: not wanted."""


class Categorical:
    """Discrete actions by logits; unavailable actions have the lowest float32 as logit."""

    def __init__(self, num_actions: int) -> None:
        self.num_inputs = num_actions

    def best(self, inputs: np.ndarray) -> np.ndarray:
        return inputs.argmax(-1)

    def draw(self, inputs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        # Gumbel-max: a sixth of the cost of torch's Categorical.
        return (inputs - np.log(rng.standard_exponential(inputs.shape))).argmax(-1)

    def log_prob(self, inputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        found = log_probs_of(inputs)[np.arange(len(actions)), actions]
        return found.astype(np.float32)

    def terms(self, inputs: Tensor, actions: Tensor, acted: Tensor | None = None) -> Terms:
        log_probs = inputs.log_softmax(-1)
        # A masked action's logarithm may be infinite; times its probability it has to be 0.
        finite = log_probs.clamp(min=torch.finfo(log_probs.dtype).min)
        entropy = -(finite * log_probs.exp()).sum(-1)
        kl = None
        if acted is not None:
            old = acted.log_softmax(-1)
            probs = old.exp()
            kl = (probs * (old - log_probs)).masked_fill(probs == 0, 0.0).sum(-1)
        taken = log_probs.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)
        return Terms(taken, entropy, kl)


class MultiCategorical:
    """Several Discrete choices at once; the logits of one choice follow those of another."""

    def __init__(self, sizes: list[int]) -> None:
        self.num_inputs = sum(sizes)
        self._parts = [Categorical(size) for size in sizes]
        self._sizes = sizes
        self._cuts = np.cumsum(sizes)[:-1]

    def best(self, inputs: np.ndarray) -> np.ndarray:
        return np.stack([one.argmax(-1) for one in np.split(inputs, self._cuts, -1)], -1)

    def draw(self, inputs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return self.best(inputs - np.log(rng.standard_exponential(inputs.shape)))

    def log_prob(self, inputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        parts = zip(self._parts, np.split(inputs, self._cuts, -1), strict=True)
        found = [one.log_prob(own, actions[:, i]) for i, (one, own) in enumerate(parts)]
        return np.sum(found, axis=0)

    def terms(self, inputs: Tensor, actions: Tensor, acted: Tensor | None = None) -> Terms:
        learned = inputs.split(self._sizes, -1)
        old = [None] * len(self._sizes) if acted is None else acted.split(self._sizes, -1)
        parts = [
            one.terms(own, actions[..., i], old[i])
            for i, (one, own) in enumerate(zip(self._parts, learned, strict=True))
        ]
        kl = None if acted is None else torch.stack([p.kl for p in parts]).sum(0)  # type: ignore[misc]
        log_probs, entropies = (torch.stack([p[i] for p in parts]).sum(0) for i in range(2))  # type: ignore[misc]
        return Terms(log_probs, entropies, kl)


class Gaussian:
    """Continuous actions, each from a normal distribution: means, then log-deviations."""

    def __init__(self, size: int) -> None:
        self.num_inputs = 2 * size

    def best(self, inputs: np.ndarray) -> np.ndarray:
        return np.split(inputs, 2, -1)[0]

    def draw(self, inputs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        means, logs = np.split(inputs, 2, -1)
        noise = rng.standard_normal(means.shape, np.float32)
        return means + np.exp(logs) * noise

    def log_prob(self, inputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        means, logs = np.split(inputs, 2, -1)
        z = (actions - means) * np.exp(-logs)
        return (-0.5 * z * z - logs - np.float32(_LOG_ROOT_2_PI)).sum(-1, dtype=np.float32)

    def terms(self, inputs: Tensor, actions: Tensor, acted: Tensor | None = None) -> Terms:
        means, logs = inputs.chunk(2, -1)
        z = (actions - means) * (-logs).exp()
        log_prob = (-0.5 * z.square() - logs - _LOG_ROOT_2_PI).sum(-1)
        entropy = (logs + 0.5 + _LOG_ROOT_2_PI).sum(-1)
        kl = None
        if acted is not None:
            old_means, old_logs = acted.chunk(2, -1)
            ratio = (2.0 * (old_logs - logs)).exp()
            shift = ((old_means - means) * (-logs).exp()).square()
            kl = (logs - old_logs + 0.5 * (ratio + shift - 1.0)).sum(-1)
        return Terms(log_prob, entropy, kl)


Distribution = Categorical | MultiCategorical | Gaussian


def distribution_of(space: gymnasium.Space) -> Distribution:
    """Returns the distribution for a space, Discrete, MultiDiscrete or a Box."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return Categorical(int(space.n))
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return MultiCategorical([int(n) for n in space.nvec])
    assert isinstance(space, gymnasium.spaces.Box), f"the check refuses {space}"
    return Gaussian(math.prod(space.shape))


def masked(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Returns ``logits [..., n]`` with the lowest float32 where ``mask [..., n]`` is 0.

    Probabilities and shares of the entropy are exactly 0 there, and no gradient reaches the logits
    (Huang and Ontañón 2022, arXiv 2006.14171).
    """
    return logits if mask is None else torch.where(mask > 0, logits, UNAVAILABLE)


def squashed(inputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Draws differentiable actions in -1..1 from a Gaussian squashed by tanh.

    Haarnoja et al. 2018 (arXiv 1801.01290), appendix C.

    Args:
        inputs: means and log-deviations, ``[..., 2 k]``.
        noise: standard normal, ``[..., k]``.

    Returns:
        Actions ``[..., k]``, and their log-densities ``[...]``.
    """
    means, logs = inputs.chunk(2, -1)
    before = means + logs.exp() * noise
    density = -0.5 * noise.square() - logs - _LOG_ROOT_2_PI
    # log(1 - tanh(x)^2), rewritten, as that form rounds to minus infinity for large x
    slope = 2.0 * (math.log(2.0) - before - functional.softplus(-2.0 * before))
    return before.tanh(), (density - slope).sum(-1)


def clipped(inputs: Tensor) -> Tensor:
    """Returns a Gaussian's inputs ``[..., 2 k]``, with log-deviations clipped to `LOG_STD`."""
    means, logs = inputs.chunk(2, -1)
    return torch.cat([means, logs.clamp(*LOG_STD)], -1)


def squashed_actions(inputs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
    """Returns actions in -1..1, drawn as by `squashed`; without a generator ``tanh`` of means."""
    means, logs = np.split(inputs, 2, -1)
    if rng is not None:
        noise = rng.standard_normal(means.shape, np.float32)
        means = means + np.exp(logs.clip(*LOG_STD)) * noise
    return np.tanh(means)
