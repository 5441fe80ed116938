"""IMPALA and APPO: actor-critics with V-trace, which corrects for samples of older weights.

A server serves while it learns, so a batch may be some versions old. IMPALA is of Espeholt et al.
2018 (arXiv 1802.01561). APPO, as in RLlib, is IMPACT of Luo et al. 2020 (arXiv 1912.00167): PPO's
clipped ratio to a target policy, with V-trace.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from muxrl.servers.agents.keys import ACTION_MASK, OBS
from muxrl.servers.agents.log_probs import LOG_PROB
from muxrl.servers.algorithms.actor_critic import STATES, ActorCritic, ActorCriticNet
from muxrl.servers.algorithms.columns import ACTIONS, REWARDS
from muxrl.servers.algorithms.ppo import KL, AdaptiveKL
from muxrl.servers.algorithms.rollout import Padded, Rollout
from muxrl.servers.algorithms.settings.actor_critic import APPOSettings, IMPALASettings
from muxrl.servers.algorithms.update import Targets

_RATIO_CAP = 2.0
"""Largest mu / pi_target in IMPACT's surrogate, "clip" in its equation 3; as in RLlib."""


@dataclass(frozen=True)
class Corrected:
    """Terms of one update, for sequences ``[S, L]``.

    `where` is False at the padding, and `is_own` also for actions that were chosen elsewhere, with
    unknown probability.
    """

    where: Tensor
    is_own: Tensor
    num: int
    values: Tensor
    targets: Tensor
    advantages: Tensor

    def mean(self, terms: Tensor) -> Tensor:
        """Returns the mean over steps, without the padding."""
        return terms[self.where].sum() / self.num


class IMPALA(ActorCritic):
    """actor-critic corrected for lag by V-trace (Espeholt et al. 2018)

    ::

        - log pi(a|s) rho (r + gamma v' - V(s)) + c_v (V(s) - v)^2 / 2 - c_e H(pi)
    """

    Settings = IMPALASettings
    settings: IMPALASettings

    def learn_batch(self, rollout: Rollout) -> Mapping[str, Any]:
        batch = self._sequences(rollout)
        num_updates = getattr(self.settings, "circular_buffer_iterations_per_batch", 1)
        metrics: Mapping[str, Any] = {}
        for i in range(num_updates):
            self.note_progress((i + 1) / num_updates)
            loss, metrics = self.loss(batch)
            self.update({"": loss}, rollout.trajectories)
        return metrics

    def _sequences(self, rollout: Rollout) -> dict[str, Any]:
        """Returns a batch as sequences, each with the observation after its last action."""
        own = self.settings
        limit = own.rollout_fragment_length
        if self.net.is_recurrent:
            limit = min(limit, own.model.max_seq_len)
        padded = Padded.of(rollout.lengths, limit)
        num, longest = padded.is_step.shape
        sizes = padded.is_step.sum(1)
        # A piece has one more observation than actions.
        fragment = np.searchsorted(np.cumsum(rollout.lengths), padded.begins, "right")
        places = (padded.begins + fragment)[:, None] + np.minimum(
            np.arange(longest + 1), sizes[:, None]
        )
        ends = np.cumsum(rollout.lengths)[fragment] == padded.begins + sizes
        is_over = rollout.terminated[fragment] & ends
        discounts = np.full((num, longest), own.gamma, np.float32)
        discounts[is_over, sizes[is_over] - 1] = 0.0
        arrays: dict[str, Any] = {key: part[places] for key, part in rollout.parts.items()}
        arrays |= {
            ACTIONS: rollout.actions[padded.rows],
            LOG_PROB: rollout.outputs[LOG_PROB][padded.rows],
            REWARDS: rollout.rewards[padded.rows],
            "discounts": discounts,
            "where": padded.is_step,
        }
        batch: dict[str, Any] = self.on_device(arrays)
        if self.net.is_recurrent:
            batch[STATES] = self._states_at(rollout, padded, has_last=False)
        return batch

    def terms(self, batch: Mapping[str, Any], judge: Tensor | None = None) -> tuple[Corrected, Any]:
        """Returns V-trace's targets and advantages; and the distribution's inputs and terms.

        Args:
            batch: from `_sequences`.
            judge: log-probabilities of V-trace's target policy, ``[S, L]``; None: of the policy
                that is learned.
        """
        where = batch["where"]
        inputs, values = self._asked(batch, self.net)
        terms = self.distribution.terms(inputs, batch[ACTIONS])
        with torch.no_grad():
            log_rhos = (terms.log_prob if judge is None else judge) - batch[LOG_PROB]
            log_rhos = log_rhos.masked_fill(~where, -torch.inf)
            targets, advantages = self._vtrace(log_rhos, values, batch)
        is_own = where & torch.isfinite(batch[LOG_PROB])
        found = Corrected(where, is_own, int(where.sum()), values[:, :-1], targets, advantages)
        return found, (inputs, terms)

    def _vtrace(
        self, log_rhos: Tensor, all_values: Tensor, batch: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Returns value targets and advantages, ``[S, L]`` each, by equation 1.

        Args:
            log_rhos: log pi(a) - log mu(a) of each action, ``[S, L]``; minus infinity if the policy
                that acted is unknown.
            all_values: values of the observations acted on, and of the observation after each
                sequence's last action, ``[S, L + 1]``.
            batch: has rewards, and discounts: gamma, or 0 where an episode terminates.
        """
        own, rewards, discounts = self.settings, batch[REWARDS], batch["discounts"]
        values, following = all_values[:, :-1], all_values[:, 1:]
        rhos = log_rhos.exp()
        trace = rhos.clamp(max=1.0)
        errors = rhos.clamp(max=own.vtrace_clip_rho_threshold)
        errors = errors * (rewards + discounts * following - values)
        corrections = torch.empty_like(values)
        running = torch.zeros_like(values[:, 0])
        for t in reversed(range(values.shape[1])):
            running = errors[:, t] + discounts[:, t] * trace[:, t] * running
            corrections[:, t] = running
        later = torch.cat([corrections[:, 1:], torch.zeros_like(running)[:, None]], 1)
        advantages = rewards + discounts * (following + later) - values
        return values + corrections, rhos.clamp(max=own.vtrace_clip_pg_rho_threshold) * advantages

    def _asked(self, batch: Mapping[str, Any], net: ActorCriticNet) -> tuple[Tensor, Tensor]:
        """Returns a network's distribution inputs ``[S, L, k]``, and values ``[S, L + 1]``."""
        if net.is_recurrent:
            inputs, values = self.predicted(batch, net)
        else:
            lead = batch[OBS].shape[:2]
            rows = {key: batch[key].flatten(0, 1) for key in (OBS, ACTION_MASK) if key in batch}
            inputs, values = (one.unflatten(0, lead) for one in self.predicted(rows, net))
        # In shorter sequences the padding repeats the observation after the last action.
        return inputs[:, :-1].masked_fill(~batch["where"][..., None], 0.0), values

    def loss(self, batch: Mapping[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """Returns the loss of the class's formula, and its metrics."""
        found, (_, terms) = self.terms(batch)
        # An action that was chosen elsewhere has advantage 0, but its logarithm may be infinite.
        gain = torch.where(found.advantages == 0.0, 0.0, terms.log_prob * found.advantages)
        policy_loss = -found.mean(gain)
        loss, metrics = self.with_value(policy_loss, found, terms.entropy)
        return loss, {"mean_pi_loss": policy_loss.detach(), **metrics}

    def with_value(
        self, policy_loss: Tensor, found: Corrected, entropy: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        """Adds the losses of values and entropy to a policy's loss; returns it with metrics."""
        vf_loss = 0.5 * found.mean((found.values - found.targets).square())
        entropy = entropy.masked_fill(~found.is_own, 0.0)
        loss = policy_loss + self.settings.vf_loss_coeff * vf_loss
        loss = loss - self.entropy_coeff * found.mean(entropy)
        return loss, {
            "total_loss": loss.detach(),
            "mean_vf_loss": vf_loss.detach(),
            "entropy": entropy.detach().sum() / found.is_own.sum().clamp(min=1),
        }


class APPO(IMPALA):
    """PPO's ratio against a target policy, with V-trace (Luo et al. 2020)"""

    Settings = APPOSettings
    saved = {"kl": "kl", "target": "target", "num_batches": "_num_batches"}
    settings: APPOSettings
    targets: Targets

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.kl = AdaptiveKL(self.settings.kl_coeff, self.settings.kl_target)
        self.target = copy.deepcopy(self.net)
        self.targets = Targets((self.net, self.target))
        self._num_batches = 0

    def learn_batch(self, rollout: Rollout) -> Mapping[str, Any]:
        own = self.settings
        metrics = super().learn_batch(rollout)
        before = self._num_batches
        self._num_batches += own.circular_buffer_iterations_per_batch
        every = own.target_network_update_freq * own.circular_buffer_iterations_per_batch
        if before // every != self._num_batches // every:
            self.targets.follow(own.tau)
            if own.use_kl_loss:
                self.kl.adapt(float(metrics[KL]))
        return {**metrics, "curr_kl_coeff": self.kl.coeff}

    def loss(self, batch: Mapping[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        own = self.settings
        with torch.no_grad():
            old_inputs, _ = self._asked(batch, self.target)
            old = self.distribution.terms(old_inputs, batch[ACTIONS])
        found, (inputs, terms) = self.terms(batch, judge=old.log_prob)
        acted = batch[LOG_PROB]
        weight = (acted - old.log_prob).exp().clamp(max=_RATIO_CAP)
        ratio = weight * (terms.log_prob - acted).exp()
        ratio = torch.where(found.is_own, ratio, 0.0)
        clipped = ratio.clamp(1.0 - own.clip_param, 1.0 + own.clip_param)
        surrogate = torch.min(found.advantages * ratio, found.advantages * clipped)
        policy_loss = -found.mean(surrogate)
        loss, metrics = self.with_value(policy_loss, found, terms.entropy)
        mean_kl: Any = 0.0
        if own.use_kl_loss:
            kl = self.distribution.terms(inputs, batch[ACTIONS], old_inputs).kl
            assert kl is not None
            mean_kl = found.mean(kl.masked_fill(~found.is_own, 0.0))
            loss = loss + self.kl.coeff * mean_kl
            mean_kl = mean_kl.detach()
        metrics |= {"total_loss": loss.detach(), "vf_loss": metrics.pop("mean_vf_loss")}
        return loss, {"policy_loss": policy_loss.detach(), KL: mean_kl, **metrics}

    def networks(self) -> dict[str, Any]:
        return dict(self._both().state_dict())

    def set_networks(self, networks: Mapping[str, Any]) -> None:
        self._both().load_state_dict(networks)

    def _both(self) -> nn.Module:
        return nn.ModuleDict({"net": self.net, "target": self.target})
