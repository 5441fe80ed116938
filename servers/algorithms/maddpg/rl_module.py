"""A team's RLModule: a deterministic actor, one or two critics, and target copies of both."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.utils import make_target_network
from ray.rllib.utils.schedules.scheduler import Scheduler
from torch import Tensor, nn
from torch.nn import functional

from muxrl.protocol.dense import UNAVAILABLE
from muxrl.servers.agents.keys import ACTION_MASK, OBS
from muxrl.servers.algorithms.joint_critics.rl_module import JointCriticRLModule
from muxrl.servers.export.ports import one_hot

TWIN_CRITICS = "twin_critics"
EXPLORATION_NOISE = "exploration_noise"
LOGITS = "logits"


class MADDPGTorchRLModule(JointCriticRLModule):
    """It acts by ``tanh`` of the actor's outputs ``[B, n, d]``; in training noise is added.

    A member with Discrete actions takes the one of the highest output; in training it draws from
    their softmax; in both, and in targets, among those that its mask allows. The actor's loss
    reaches its outputs through a straight-through Gumbel-softmax (Lowe et al. 2017, appendix; Jang
    et al. 2017, arXiv 1611.01144).

    ``model_config`` keys: also ``twin_critics`` and ``exploration_noise`` of `MADDPGConfig`.
    """

    algorithm = "MADDPG"
    takes_choices = True

    def setup(self) -> None:
        super().setup()
        self._noise_schedule = Scheduler(
            fixed_value_or_schedule=self.model_config[EXPLORATION_NOISE], framework="torch"
        )
        self._noise_t, self._noise = -1, 0.0

    @property
    def num_critics(self) -> int:
        return 2 if self.model_config[TWIN_CRITICS] else 1

    def get_non_inference_attributes(self) -> list[str]:
        return [*super().get_non_inference_attributes(), "_target_actor"]

    def make_target_networks(self) -> None:
        super().make_target_networks()
        self._target_actor = make_target_network(self.actor)

    def get_target_network_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        return [*super().get_target_network_pairs(), (self.actor, self._target_actor)]

    def actions(self, obs: dict[str, Tensor]) -> Tensor:
        """Returns the actor's actions ``[B, n, d]``, 0 in dimensions that a member lacks."""
        outputs = self.actor_outputs(obs[OBS])
        return self._chosen(torch.tanh(outputs) * self.has_dimension, outputs, obs)

    def _chosen(
        self, actions: Tensor, outputs: Tensor, obs: dict[str, Tensor], how: str = "greedy"
    ) -> Tensor:
        """Returns actions with one-hot rows for the members that have Discrete ones.

        Args:
            actions: ``[B, n, d]``, of the others.
            outputs: of the actor, logits here.
            obs: has the masks, if there are any.
            how: "greedy", "drawn", or "relaxed": drawn, with the gradient of a softmax.
        """
        if not self.has_choices:
            return actions
        available = obs.get(ACTION_MASK, self.has_dimension)
        logits = torch.where(available > 0, outputs, UNAVAILABLE)
        if how == "greedy":
            rows = one_hot(logits.argmax(-1), self.action_dim)
        else:
            rows = functional.gumbel_softmax(logits, hard=True)
        return torch.where(self._chooses, rows if how == "relaxed" else rows.detach(), actions)

    @torch.no_grad()
    def target_actions(self, obs: dict[str, Tensor], noise: float, clip: float) -> Tensor:
        """Returns the target actor's, with clipped noise ("target policy smoothing").

        Args:
            obs: as a team observes, ``[B, ...]``.
            noise: standard deviation.
            clip: its largest size.
        """
        outputs = self.actor_outputs(obs[OBS], self._target_actor)
        actions = torch.tanh(outputs)
        if noise > 0.0:
            drawn = (noise * torch.randn_like(actions)).clamp(-clip, clip)
            actions = (actions + drawn).clamp(-1.0, 1.0)
        return self._chosen(actions * self.has_dimension, outputs, obs)

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        obs = batch[Columns.OBS]
        outputs = self.actor_outputs(obs[OBS])
        actions = torch.tanh(outputs) * self.has_dimension
        return {Columns.ACTIONS: self._chosen(actions, outputs, obs, "relaxed"), LOGITS: outputs}

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {Columns.ACTIONS: self.actions(batch[Columns.OBS])}

    def _forward_exploration(
        self, batch: dict[str, Any], t: int = 0, **kwargs: Any
    ) -> dict[str, Any]:
        """Adds Gaussian noise, and clips at -1 and 1; `t` is the number of env steps so far."""
        obs = batch[Columns.OBS]
        outputs = self.actor_outputs(obs[OBS])
        actions = torch.tanh(outputs) * self.has_dimension
        noisy = actions + self._noise_at(t) * torch.randn_like(actions)
        noisy = noisy.clamp(-1.0, 1.0) * self.has_dimension
        return {Columns.ACTIONS: self._chosen(noisy, outputs, obs, "drawn")}

    def _noise_at(self, t: int) -> float:
        if t != self._noise_t:
            self._noise_t, self._noise = t, float(self._noise_schedule.update(t))
        return self._noise
