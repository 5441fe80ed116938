"""MASAC: SAC for teams whose members have continuous actions.

The critics see all members and their joint action, as in MADDPG (Lowe et al. 2017, arXiv
1706.02275). Everything else is as in SAC (Haarnoja et al. 2018, arXiv 1812.05905).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from muxrl.servers.agents.keys import ALIVE, OBS
from muxrl.servers.algorithms.columns import ACTIONS, NEXT_OBS, REWARDS, TERMINATEDS
from muxrl.servers.algorithms.distributions import LOG_STD, clipped, squashed, squashed_actions
from muxrl.servers.algorithms.joint_critics.trainer import (
    CRITIC,
    POLICY,
    JointCriticTrainer,
    TeamNet,
)
from muxrl.servers.algorithms.settings.teams import MASACSettings
from muxrl.servers.algorithms.temperature import ALPHA, Temperature
from muxrl.servers.algorithms.torch_trainer import Asked
from muxrl.servers.algorithms.update import Step
from muxrl.servers.trainers.interface import Acted, Rows


class MASAC(JointCriticTrainer):
    """SAC for teams, with critics of the joint action (Lowe et al. 2017, Haarnoja et al. 2018)

    With ``log pi(t) = sum over present members m of log pi(a_m | o_m)`` and ``a'`` drawn by the
    current actor at t + 1 (Haarnoja et al. 2018, arXiv 1812.05905, equations 5, 7 and 18, for a
    policy that is a product over members)::

        critics  mean (Q_i(s, a) - y)^2,
                 y = r + gamma (1 - terminated) (min_i Q_i_target(s', a') - alpha log pi(a'))
        actor    mean alpha log pi(a) - min_i Q_i(s, a),  a drawn anew for every member
        alpha    mean over steps of  - log alpha * sum over present m of (log pi(a_m) + H_m)
    """

    Settings = MASACSettings
    saved = {**JointCriticTrainer.saved, ALPHA: "temperature"}
    settings: MASACSettings

    def make_net(self) -> nn.Module:
        return TeamNet(self.policy, self.settings, outputs_per_dimension=2)

    def make_steps(self) -> dict[str, Step]:
        own, target = self.settings, self.settings.target_entropy
        sizes = self._dimensions.sum(1)
        entropies = -sizes if target == "auto" else np.full(len(sizes), target, np.float32)
        self.target_entropy = torch.from_numpy(entropies).to(self.device)
        """Target entropy of each member, ``[n]``."""
        self.temperature = Temperature(own.initial_alpha, self.device)
        alpha = Step({"": [self.temperature.log]}, lambda: own.alpha_lr, clip=own.grad_clip)
        return {**super().make_steps(), ALPHA: alpha}

    def act(self, rows: Rows) -> Acted:
        rng = rows.rng if rows.should_explore else None
        return Acted(squashed_actions(self.outputs_of(rows), rng) * self._dimensions)

    def network(self) -> nn.Module:
        """Returns the module from a member's parts to means and log-deviations before ``tanh``, for
        files."""
        return Asked(self.net.actor, lambda actor, *seen: clipped(actor(torch.cat(seen, -1))))

    def draw_actions(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Draws differentiable actions.

        Args:
            obs: ``[B, n, obs_dim]``.

        Returns:
            Actions ``[B, n, d]`` in -1..1, 0 in dimensions that a member lacks, and each member's
            log-density ``[B, n]``, exact even if ``tanh`` saturates.
        """
        means, logs = self.net.outputs(obs).chunk(2, -1)
        # Log-densities for each dimension, to leave out those that a member lacks.
        inputs = torch.stack([means, logs.clamp(*LOG_STD)], -1)
        actions, log_probs = squashed(inputs, self.noise(means).unsqueeze(-1))
        return actions.squeeze(-1) * self.has_dimension, (log_probs * self.has_dimension).sum(-1)

    def update_on(self, batch: dict[str, Any]) -> tuple[dict[str, Any], Tensor | None]:
        net, seen = self.net, batch[OBS]
        alive, alpha = seen[ALIVE], self.temperature.alpha
        target = self.target(batch, alpha)
        values = net.values(seen, batch[ACTIONS])
        actions, log_probs = self.draw_actions(seen[OBS])
        of_team = (log_probs * alive).sum(-1)
        lower = net.values(seen, actions).amin(0)
        surplus = (log_probs.detach() + self.target_entropy) * alive
        losses = {
            CRITIC: (values - target).square().mean(1).sum(),
            POLICY: (alpha * of_team - lower).mean(),
            ALPHA: self.temperature.loss(surplus.sum(-1)),
        }
        self.update(losses, [batch])
        self.targets.follow(self.settings.tau)
        metrics = self.measured(losses, batch, values, target)
        return metrics | {"alpha_value": alpha, "logp_mean": of_team.detach().mean}, None

    @torch.no_grad()
    def target(self, batch: Mapping[str, Any], alpha: Tensor) -> Tensor:
        """Returns the target of both critics, ``[B]``.

        Terminated steps have no future value; truncated ones are bootstrapped from the observation
        after them. Members that are absent there have no entropy, and no part in the joint action.
        """
        net, following = self.net, batch[NEXT_OBS]
        actions, log_probs = self.draw_actions(following[OBS])
        lower = net.values(following, actions, net.target_critic).amin(0)
        soft_value = lower - alpha * (log_probs * following[ALIVE]).sum(-1)
        return batch[REWARDS] + self.gamma * (1.0 - batch[TERMINATEDS]) * soft_value
