"""Proximal policy optimisation; Schulman et al. 2017 (arXiv 1707.06347)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from muxrl.servers.agents.keys import ACTION_MASK
from muxrl.servers.agents.log_probs import DISTRIBUTION, LOG_PROB
from muxrl.servers.algorithms.actor_critic import OWN, OnPolicy, mean_of_own, steps_of
from muxrl.servers.algorithms.columns import ACTIONS, ADVANTAGES, TARGETS
from muxrl.servers.algorithms.distributions import masked
from muxrl.servers.algorithms.rollout import Rollout
from muxrl.servers.algorithms.settings.actor_critic import PPOSettings
from muxrl.servers.trainers.interface import Rows

KL = "mean_kl_loss"


class AdaptiveKL:
    """The weight of a KL penalty, adapted to keep a target divergence.

    Args:
        first: weight to begin with.
        target: divergence to keep.
    """

    def __init__(self, first: float, target: float) -> None:
        self._first, self._target = first, target
        self.coeff = first

    def adapt(self, kl: float) -> None:
        """Adapts the weight to the divergence of a batch."""
        if kl > 2.0 * self._target:
            self.coeff *= 1.5
        elif kl < 0.5 * self._target:
            self.coeff *= 0.5

    def get_state(self) -> dict[str, float]:
        """Returns the weight, and the setting that it began with."""
        return {"coeff": self.coeff, "first": self._first}

    def set_state(self, state: Mapping[str, float]) -> None:
        """Loads the weight, unless the setting has changed since."""
        if state["first"] == self._first:
            self.coeff = state["coeff"]


class PPO(OnPolicy):
    """proximal policy optimisation (Schulman et al. 2017)

    ::

        - min(r A, clip(r, 1 - e, 1 + e) A) + c_v (V - R)^2 - c_e H(pi) + c_kl KL(old || pi)

    Actions that were chosen elsewhere have no weight in the policy's part, entropy and KL included.
    """

    Settings = PPOSettings
    saved = {"kl": "kl"}
    settings: PPOSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.kl = AdaptiveKL(self.settings.kl_coeff, self.settings.kl_target)

    def value(self, rows: Rows) -> np.ndarray | None:  # type: ignore[override]
        """Returns the expected return from each row on, ``[n]``; None without a critic."""
        return super().value(rows) if self.settings.use_critic else None

    def values_of(self, rollout: Rollout) -> np.ndarray:
        if self.settings.use_critic:
            return super().values_of(rollout)
        return np.zeros(len(rollout.rewards) + len(rollout.lengths), np.float32)

    def loss(self, batch: Mapping[str, Any], *, is_reported: bool) -> tuple[Tensor, dict[str, Any]]:
        own = self.settings
        inputs, values = self.predicted(batch)
        acted = None
        if own.use_kl_loss:  # clients that act by themselves may send unmasked logits
            acted = masked(batch[DISTRIBUTION], batch.get(ACTION_MASK))
        log_prob, entropy, kl = self.distribution.terms(inputs, batch[ACTIONS], acted)
        is_own, targets = batch[OWN], batch[TARGETS]
        entropy = entropy.masked_fill(~is_own, 0.0)
        if not own.use_critic:
            values = targets = torch.zeros_like(targets)
        advantages = batch[ADVANTAGES].masked_fill(~is_own, 0.0)
        ratio = (log_prob - batch[LOG_PROB]).exp()
        clipped = ratio.clamp(1.0 - own.clip_param, 1.0 + own.clip_param)
        surrogate = torch.min(advantages * ratio, advantages * clipped)
        squares = (values - targets).square()
        vf_loss = squares if own.vf_clip_param is None else squares.clamp(max=own.vf_clip_param)
        coeff = self.entropy_coeff
        (terms,) = steps_of(batch, own.vf_loss_coeff * vf_loss - surrogate - coeff * entropy)
        loss = terms.mean()
        mean_kl = None
        if kl is not None:
            mean_kl = steps_of(batch, kl.masked_fill(~is_own, 0.0))[0].mean()
            loss = loss + self.kl.coeff * mean_kl
        if not is_reported:
            return loss, {}
        parts = [one.detach() for one in (surrogate, vf_loss, squares, targets, values)]
        surrogate, vf_loss, squares, targets, values = steps_of(batch, *parts)
        means = -surrogate.mean(), vf_loss.mean(), mean_of_own(batch, entropy)
        return loss, {
            **self.measured(targets, values, loss, *means),
            "vf_loss_unclipped": squares.mean(),
            KL: 0.0 if mean_kl is None else mean_kl.detach(),
        }

    def learn_columns(self, *batch: Any) -> Mapping[str, Any]:
        metrics = super().learn_columns(*batch)
        if not self.settings.use_kl_loss:
            return metrics
        self.kl.adapt(float(metrics[KL]))
        return {**metrics, "curr_kl_coeff": self.kl.coeff}
