"""MAPPO: PPO whose actors see their own observations, and whose critic sees the state.

Yu et al. 2022, "The Surprising Effectiveness of PPO in Cooperative Multi-Agent Games" (arXiv
2103.01955). With ``use_lstm`` both networks are recurrent (rMAPPO). As in the paper's code, the
critic's recurrent state is recorded at every step, as the actor's is, so that a learned sequence
begins with the critic's state at its first step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss

from muxrl.servers.agents.keys import AGENT_ID, ALIVE, OBS, STATE
from muxrl.servers.agents.log_probs import LOG_PROB
from muxrl.servers.algorithms.actor_critic import (
    ACTOR,
    CRITIC,
    IS_STEP,
    OWN,
    STATES,
    ActorCriticNet,
    OnPolicy,
    Parts,
    steps_of,
)
from muxrl.servers.algorithms.columns import ACTIONS, ADVANTAGES, TARGETS
from muxrl.servers.algorithms.distributions import Distribution, distribution_of
from muxrl.servers.algorithms.rollout import Rollout
from muxrl.servers.algorithms.settings.actor_critic import CentralSettings, MAPPOSettings
from muxrl.servers.algorithms.update import Step
from muxrl.servers.trainers.interface import Rows
from muxrl.servers.training.skipped_updates import MAX_GRADIENT

OLD_VALUES = "old_values"
"""Name of the column of values before the update, in the critic's units."""
_MIN_ADVANTAGE_STD = 1e-5
"""Added to the deviation of advantages, as in the paper's code."""
_MIN_RETURN_STD = 1e-4
"""Least deviation of returns, against a division by 0 while all returns are equal."""


class ValueNormalizer(nn.Module):
    """The running mean and standard deviation of all returns seen so far.

    Yu et al. 2022, "value normalization". All returns count alike; the paper's code, with a decay
    of 0.99999 an update, comes to the same. The three numbers are buffers, so that they are part
    of a state dict.
    """

    count: Tensor
    mean: Tensor
    sum_of_squares: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("count", "mean", "sum_of_squares"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))

    @property
    def std(self) -> Tensor:
        """The standard deviation, 1 before the first return."""
        if self.count == 0:
            return torch.ones_like(self.mean)
        return (self.sum_of_squares / self.count).sqrt().clamp(min=_MIN_RETURN_STD)

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
        """Undoes `normalize`, float32 of the same shape."""
        return (values * self.std + self.mean).float()


class CentralNet(ActorCriticNet):
    """An actor that reads an agent's observation, and a critic that reads the state.

    While an agent is absent, the actor's recurrent state stays as it is, since the agent observes
    nothing. The critic's changes, since the team plays on.

    Args:
        settings: MAPPO's or HAPPO's.
        sizes: length of each part of an observation, by key.
        distribution: of actions.
    """

    def __init__(
        self, settings: CentralSettings, sizes: Mapping[str, int], distribution: Distribution
    ) -> None:
        of_actor: tuple[str, ...] = (OBS,)
        if getattr(settings, "obs_agent_id", False) and AGENT_ID in sizes:
            of_actor += (AGENT_ID,)
        of_critic: tuple[str, ...] = (STATE,)
        if settings.agent_specific_state:
            of_critic += tuple(key for key in (AGENT_ID, OBS) if key in sizes)
        shapes = [(sum(sizes[key] for key in keys),) for keys in (of_actor, of_critic)]
        separate = replace(settings.model, vf_share_layers=False)
        super().__init__(separate, shapes[0], distribution, shapes[1])
        self.keys = {ACTOR: of_actor, CRITIC: of_critic}
        self.normalizer = ValueNormalizer() if settings.normalize_values else None

    def unroll_one(
        self, name: str, parts: Parts, states: Parts
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Unrolls as in `ActorCriticNet`; the features of absent agents mean nothing.

        The actor reads each sequence in another order, first the steps at which the agent is
        present: this way a single pass goes over these as if there were no others. Its states are
        returned only for sequences of one step, as in acting.
        """
        if name == CRITIC or ALIVE not in parts:
            return super().unroll_one(name, parts, states)
        alive = parts[ALIVE][..., 0] > 0
        if alive.shape[1] == 1:
            features, after = super().unroll_one(name, parts, states)
            return features, {k: torch.where(alive, new, states[k]) for k, new in after.items()}
        order = (~alive).int().argsort(dim=1, stable=True)
        there_first = {k: parts[k].take_along_dim(order[..., None], 1) for k in self.keys[ACTOR]}
        features, _ = super().unroll_one(name, there_first, states)
        return features.take_along_dim(order.argsort(dim=1)[..., None], 1), {}

    def in_rewards(self, values: Tensor) -> Tensor:
        """Converts the critic's values to the units of rewards."""
        return values if self.normalizer is None else self.normalizer.denormalize(values)

    @torch.no_grad()
    def learn_units(self, returns: Tensor) -> Tensor:
        """Adds returns ``[N]`` to the statistics, and converts them to the critic's new units.

        The last layer is rescaled so that values stay the same in the units of rewards (PopArt, van
        Hasselt et al. 2016, arXiv 1602.07714, equations 3 and 4), except at the first returns,
        before which there is nothing to preserve.
        """
        known = self.normalizer
        if known is None:
            return returns
        is_first = bool(known.count == 0)
        old_mean, old_std = known.mean.clone(), known.std
        known.update(returns)
        if not is_first:
            mean, std = known.mean, known.std
            last: Any = self.vf[-1]
            last.weight.mul_((old_std / std).float())
            last.bias.copy_((old_std * last.bias + old_mean - mean) / std)
        return known.normalize(returns)


class MAPPO(OnPolicy):
    """PPO whose critic sees the global state (Yu et al. 2022)

    The objectives of the paper's appendix::

        actor   - mean over acting steps of  min(r A, clip(r, 1 - e, 1 + e) A) + c_e H(pi)
        critic  c_v * mean over all steps of max(huber(V - R), huber(V_old + clip(V - V_old) - R))

    A step at which the agent did not act (``ALIVE`` 0), or not by its policy, trains the critic,
    which has to know what a team still earns without the agent, but not the actor.
    """

    Settings: ClassVar[type[CentralSettings]] = MAPPOSettings
    settings: CentralSettings
    net: CentralNet

    def make_net(self) -> nn.Module:
        sizes = {key: part.shape[0] for key, part in self.policy.parts.items()}
        self.distribution = distribution_of(self.policy.action_space)
        return CentralNet(self.settings, sizes, self.distribution)

    def make_steps(self) -> dict[str, Step]:
        own, net = self.settings, self.net
        of_critic = [*net.critic.parameters(), *net.vf.parameters()]
        of_actor = [p for one in self.acting_modules() for p in one.parameters()]
        groups = {ACTOR: of_actor, CRITIC: of_critic}
        if own.clip_jointly or own.grad_clip is None:
            groups = {"": of_actor + of_critic}
        clip, eps = own.grad_clip, own.optimizer_epsilon
        return {"": Step(groups, lambda: own.lr, clip=clip, clip_by=own.grad_clip_by, eps=eps)}

    # --- acting -------------------------------------------------------------------------

    @property
    def input_keys(self) -> tuple[str, ...]:
        return self.net.keys[ACTOR]

    @property
    def asked_keys(self) -> tuple[str, ...]:
        """Parts of an observation that rows to act on need, also for the recurrent states."""
        if not self.net.is_recurrent:
            return self.acting_keys
        remembered = (ALIVE, *self.value_keys)
        more = [key for key in remembered if key in self.policy.parts]
        return tuple(dict.fromkeys([*self.acting_keys, *more]))

    @property
    def value_keys(self) -> tuple[str, ...]:
        """Parts of an observation that `value` reads."""
        return self.net.keys[CRITIC]

    @property
    def critic_remembers(self) -> bool:
        """Whether a value depends on the critic's recurrent state."""
        return self.net.is_recurrent

    def acting_modules(self) -> Sequence[nn.Module]:
        net = self.net
        log_std = [] if net.log_std is None else [nn.ParameterList([net.log_std])]
        return [net.actor, net.pi, *log_std]

    def followed_modules(self) -> Sequence[nn.Module]:
        return [self.net] if self.net.is_recurrent else self.acting_modules()

    def carries_critic(self, rows: Rows) -> bool:
        return rows.is_training  # else it is not needed, and a state may be lacking

    def value(self, rows: Rows) -> np.ndarray:
        return self.net.in_rewards(torch.from_numpy(super().value(rows))).numpy()

    # --- learning -----------------------------------------------------------------------

    def values_of(self, rollout: Rollout) -> np.ndarray:
        values = torch.from_numpy(super().values_of(rollout)).to(self.device)
        return self.net.in_rewards(values).cpu().numpy()

    def batch_of(self, rollout: Rollout) -> dict[str, Any]:
        """Returns the columns of a batch.

        Advantages are standardised over the steps that train the actor, those at which the policy
        acted. Targets and old values are in the critic's units.
        """
        advantages, targets = self.estimates_of(rollout)
        acted = advantages[rollout.is_own]
        if np.abs(targets).max() <= MAX_GRADIENT:
            targets = self.net.learn_units(torch.from_numpy(targets).to(self.device)).cpu().numpy()
            if len(acted):
                advantages = (advantages - acted.mean()) / (acted.std() + _MIN_ADVANTAGE_STD)
        else:  # too large for statistics; NaN skips the update, as a Huber loss would not
            targets = np.full_like(targets, np.nan)
        columns = self.columns_of(rollout, **{ADVANTAGES: advantages, TARGETS: targets})
        if self.settings.vf_clip_param is not None:
            with torch.no_grad():
                columns[OLD_VALUES] = self.net.values_alone(columns, columns.get(STATES))
        return columns

    def loss(self, batch: Mapping[str, Any], *, is_reported: bool) -> tuple[Tensor, dict[str, Any]]:
        own = self.settings
        inputs, values = self.predicted(batch)
        log_prob, entropy, _ = self.distribution.terms(inputs, batch[ACTIONS])
        ratio, advantages = ratio_of(log_prob, batch), batch[ADVANTAGES]
        clipped = ratio.clamp(1.0 - own.clip_param, 1.0 + own.clip_param)
        gain = torch.min(ratio * advantages, clipped * advantages)
        acted = batch[OWN] & batch[IS_STEP] if IS_STEP in batch else batch[OWN]
        policy_loss, mean_entropy = -_mean(gain, acted), _mean(entropy, acted)

        targets = batch[TARGETS]
        errors = self._errors(values, targets)
        if own.vf_clip_param is not None:
            limit = own.vf_clip_param
            near = batch[OLD_VALUES] + (values - batch[OLD_VALUES]).clamp(-limit, limit)
            errors = torch.max(errors, self._errors(near, targets))
        errors, values, targets = steps_of(batch, errors, values, targets)
        vf_loss = errors.mean()
        loss = policy_loss + own.vf_loss_coeff * vf_loss - self.entropy_coeff * mean_entropy
        if not is_reported:
            return loss, {}
        return loss, self.measured(targets, values, loss, policy_loss, vf_loss, mean_entropy)

    def _errors(self, values: Tensor, targets: Tensor) -> Tensor:
        """Returns half the squared error of each value, linear beyond `huber_delta`."""
        delta = self.settings.huber_delta
        if delta is None:
            return 0.5 * (values - targets).square()
        return huber_loss(values, targets, reduction="none", delta=delta)


def ratio_of(log_prob: Tensor, batch: Mapping[str, Any]) -> Tensor:
    """Returns the probability ratio, new to old, of each action, ``[B]`` or ``[S, L]``.

    It is 1 for actions that the policy did not choose.
    """
    # There it could be any number, and an overflow would make all gradients NaN.
    return (log_prob - batch[LOG_PROB]).masked_fill(~batch[OWN], 0.0).exp()


def _mean(of_steps: Tensor, which: Tensor) -> Tensor:
    # 0 if a minibatch has no step at which the policy acted.
    return of_steps.masked_fill(~which, 0.0).sum() / which.sum().clamp(min=1)
