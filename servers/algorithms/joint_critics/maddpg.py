"""MADDPG and MATD3: deterministic actors, critics of the joint action, exploration by noise.

MATD3 (Ackermann et al. 2019, arXiv 1910.01465), or MADDPG (Lowe et al. 2017, arXiv 1706.02275) with
three settings off. Unlike in the papers, a team has one reward, so that all members share the
critics, and also an actor, which reads the member's id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from muxrl.protocol.dense import UNAVAILABLE
from muxrl.servers.agents.keys import ACTION_MASK, ALIVE, OBS, STATE
from muxrl.servers.algorithms.columns import ACTIONS, NEXT_OBS, REWARDS, TERMINATEDS
from muxrl.servers.algorithms.distributions import masked
from muxrl.servers.algorithms.joint_critics.trainer import (
    CRITIC,
    POLICY,
    JointCriticTrainer,
    TeamNet,
)
from muxrl.servers.algorithms.settings.teams import MADDPGSettings
from muxrl.servers.algorithms.update import value_at
from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.trainers.interface import Acted, PolicySpec, Rows

LOGIT_PENALTY = 1e-3
"""Weight of the mean square of the actor's outputs in its loss, if members have Discrete actions;
without it the logits grow until no other action is tried. As in the code of Lowe et al. 2017."""


class MADDPG(JointCriticTrainer):
    """deterministic policies for teams, critics of the joint action (Lowe et al. 2017), as MATD3

    With ``mu`` the actor, and target copies of actor and critics (Lowe et al. 2017, equations 5
    and 6; Fujimoto et al. 2018, algorithm 1, for what MATD3 adds)::

        critics  mean (Q_i(s, a) - y)^2,  y = r + gamma (1 - terminated) min_i Q_i_target(s', a'),
                 a'_m = clip(mu_target(o'_m) + clip(noise, -c, c), -1, 1)
        actor    mean over steps and present members m of
                 - Q_1(s, a with mu(o_m) in the place of a_m)

    The actor learns, and targets move, at every ``policy_delay``-th update.

    A member with Discrete actions takes the one of the highest output; in training it draws from
    their softmax; in both, and in targets, among those that its mask allows. The actor's loss
    reaches its outputs through a straight-through Gumbel-softmax (Lowe et al. 2017, appendix; Jang
    et al. 2017, arXiv 1611.01144).
    """

    Settings = MADDPGSettings
    settings: MADDPGSettings

    def __init__(self, policy: PolicySpec, settings: MADDPGSettings) -> None:
        super().__init__(policy, settings)
        space: Any = policy.action_space
        self._one_hot: np.ndarray = (space.low == 0).all(-1, keepdims=True)
        """Whether each member's action is one-hot, ``[n, 1]``."""
        self.has_choices = bool(self._one_hot.any())
        self._is_one_hot = torch.from_numpy(self._one_hot).to(self.device)

    def make_net(self) -> nn.Module:
        num_critics = 2 if self.settings.twin_critics else 1
        return TeamNet(self.policy, self.settings, num_critics=num_critics, has_target_actor=True)

    def noise_at(self, env_steps: int) -> float:
        """Returns the standard deviation of the exploration noise after some env steps."""
        return value_at(self.settings.exploration_noise, env_steps)

    def act(self, rows: Rows) -> Acted:
        outputs, rng = self.outputs_of(rows), rows.rng
        actions = np.tanh(outputs)
        if rows.should_explore:
            drawn = rng.standard_normal(actions.shape, np.float32)
            actions += np.float32(self.noise_at(rows.env_steps)) * drawn
            actions = actions.clip(-1.0, 1.0)
        actions *= self._dimensions
        if self.has_choices:
            logits = np.where(self._dimensions > 0, outputs, UNAVAILABLE)
            if rows.should_explore:  # Gumbel-max
                logits -= np.log(rng.standard_exponential(logits.shape, np.float32))
            one_hot = np.eye(logits.shape[-1], dtype=np.float32)[logits.argmax(-1)]
            actions = np.where(self._one_hot, one_hot, actions)
        return Acted(actions)

    def learn(self, trajectories: list[Trajectory]) -> dict[str, float]:  # type: ignore[override]
        return {**super().learn(trajectories), "exploration_noise": self.noise_at(self.env_steps)}

    def update_on(self, batch: dict[str, Any]) -> tuple[dict[str, Any], Tensor | None]:
        target = self.target(batch)
        values = self.net.values(batch[OBS], batch[ACTIONS])
        losses = {CRITIC: (values - target).square().mean(1).sum()}
        is_actors_turn = self.num_updates % self.settings.policy_delay == 0
        if is_actors_turn:
            losses[POLICY] = self.policy_loss(batch)
        self.update(losses, [batch])
        if is_actors_turn:
            self.targets.follow(self.settings.tau)
        return self.measured(losses, batch, values, target), None

    @torch.no_grad()
    def target(self, batch: Mapping[str, Any]) -> Tensor:
        """Returns the critics' target, ``[B]``.

        Terminated steps have no future value; truncated ones are bootstrapped from the observation
        after them. Members that are absent there have no part in the joint action.
        """
        net, following = self.net, batch[NEXT_OBS]
        lower = net.values(following, self.target_actions(following), net.target_critic).amin(0)
        return batch[REWARDS] + self.gamma * (1.0 - batch[TERMINATEDS]) * lower

    @torch.no_grad()
    def target_actions(self, seen: Mapping[str, Tensor]) -> Tensor:
        """Returns the target actor's actions, with clipped noise ("target policy smoothing").

        Args:
            seen: parts of a team's observations, ``[B, ...]``.
        """
        own = self.settings
        outputs = self.net.outputs(seen[OBS], self.net.target_actor)
        actions = outputs.tanh()
        if own.target_noise > 0.0:
            limit = own.target_noise_clip
            noise = (own.target_noise * self.noise(actions)).clamp(-limit, limit)
            actions = (actions + noise).clamp(-1.0, 1.0)
        return self._with_choices(actions * self.has_dimension, outputs, seen)

    def policy_loss(self, batch: Mapping[str, Any]) -> Tensor:
        """Returns the actor's loss."""
        seen = batch[OBS]
        outputs = self.net.outputs(seen[OBS])
        actions = outputs.tanh() * self.has_dimension
        actions = self._with_choices(actions, outputs, seen, should_draw=True)
        alive = seen[ALIVE]
        own = self.values_of_own_actions(seen, batch[ACTIONS], actions)
        loss = -(own * alive).sum() / alive.sum().clamp(min=1.0)
        return loss + LOGIT_PENALTY * outputs.square().mean() if self.has_choices else loss

    def values_of_own_actions(
        self, seen: Mapping[str, Tensor], taken: Tensor, actions: Tensor
    ) -> Tensor:
        """Returns the first critic's values ``[B, n]``, where member m alone acts by `actions`.

        The other members' actions are those of the replay, so that the gradient of a member's
        action comes only from its own value (Lowe et al. 2017, equation 5).

        Args:
            seen: parts of a team's observations, ``[B, ...]``.
            taken: actions of the replay, ``[B, n, d]``.
            actions: of the actor, ``[B, n, d]``.
        """
        num_rows, n, _ = actions.shape
        is_own = torch.eye(n, dtype=torch.bool, device=self.device).view(1, n, n, 1)
        joint = torch.where(is_own, actions.unsqueeze(1), taken.unsqueeze(1))
        repeated = {key: seen[key].repeat_interleave(n, 0) for key in (STATE, ALIVE)}
        return self.net.values(repeated, joint.flatten(0, 1), num=1).view(num_rows, n)

    def _with_choices(
        self,
        actions: Tensor,
        outputs: Tensor,
        seen: Mapping[str, Tensor],
        *,
        should_draw: bool = False,
    ) -> Tensor:
        """Returns actions, with one-hot rows for the members that have Discrete actions.

        Args:
            actions: of the members with continuous actions, ``[B, n, d]``.
            outputs: of the actor, used as logits.
            seen: has the masks, if there are any.
            should_draw: whether to draw, with the gradient of a softmax; else the best action.
        """
        if not self.has_choices:
            return actions
        logits = masked(outputs, seen.get(ACTION_MASK, self.has_dimension))
        if should_draw:
            drawn = self.rng.standard_exponential(logits.shape, np.float32)
            logits = logits - torch.from_numpy(drawn).to(self.device).log()
        rows = functional.one_hot(logits.argmax(-1), logits.shape[-1]).float()
        if should_draw:
            soft = logits.softmax(-1)
            rows = rows - soft.detach() + soft
        return torch.where(self._is_one_hot, rows, actions)
