"""A team's RLModule: the actor that all members share, the critics, and a target copy of these."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchSquashedGaussian
from ray.rllib.core.learner.utils import make_target_network
from ray.rllib.core.rl_module.apis import InferenceOnlyAPI, TargetNetworkAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor, nn

from muxrl.servers.algorithms.masac.networks import TwinCritic, make_actor
from muxrl.servers.algorithms.masac.teams import CONTINUOUS_TEAM_KEYS
from muxrl.servers.teams import ALIVE, OBS, STATE

LOGP = "logp"


class MASACTorchRLModule(TorchRLModule, TargetNetworkAPI, InferenceOnlyAPI):
    """A team's RLModule, for the spaces of a `ContinuousTeamSpec`.

    ``forward_exploration`` and ``forward_inference`` return the actions themselves, ``ACTIONS
    [B, n, d]`` in -1..1: drawn from each member's squashed Gaussian (RLlib's, as for SAC), or its
    mean. They read ``OBS`` alone: a member acts on its own row and its id.

    ``model_config`` keys: ``hidden_dim`` and ``obs_agent_id`` of `MASACConfig`.
    """

    acting_keys = (OBS,)
    has_dimension: Tensor
    _member_ids: Tensor

    def setup(self) -> None:
        team_space, config = self.observation_space, self.model_config
        if (
            not isinstance(team_space, spaces.Dict)
            or set(team_space.spaces) != set(CONTINUOUS_TEAM_KEYS)
            or not isinstance(self.action_space, spaces.Box)
        ):
            raise ValueError(
                "MASAC needs the spaces of a team with continuous actions (see "
                f"ContinuousTeamSpec), not {team_space} and {self.action_space}; are the agents "
                "in a group?"
            )
        assert isinstance(config, dict)
        num_members, obs_dim = team_space[OBS].shape  # type: ignore[misc]
        (state_dim,) = team_space[STATE].shape  # type: ignore[misc]
        self.num_members: int = num_members
        self.action_dim: int = self.action_space.shape[1]
        self.obs_agent_id: bool = config["obs_agent_id"]
        hidden_dim: int = config["hidden_dim"]
        self.actor = make_actor(
            obs_dim + num_members * self.obs_agent_id, hidden_dim, self.action_dim
        )
        self.critic = TwinCritic(state_dim + num_members * (1 + self.action_dim), hidden_dim)
        # [n, d]: 1 for the dimensions that a member's action has; see `ContinuousTeamSpec`.
        has_dimension = torch.from_numpy(self.action_space.high > 0).float()
        self.register_buffer("has_dimension", has_dimension, persistent=False)
        self.register_buffer("_member_ids", torch.eye(num_members), persistent=False)

    def get_non_inference_attributes(self) -> list[str]:
        return ["critic", "_target_critic"]

    def make_target_networks(self) -> None:
        self._target_critic = make_target_network(self.critic)

    def get_target_network_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        return [(self.critic, self._target_critic)]

    def forward_target(self, batch: dict[str, Any]) -> Tensor:
        """Returns the target critics' values ``[2, B]`` of ``OBS`` and ``ACTIONS``."""
        with torch.no_grad():
            return self._values(self._target_critic, batch[Columns.OBS], batch[Columns.ACTIONS])

    def values(self, obs: dict[str, Tensor], actions: Tensor) -> Tensor:
        """Returns the critics' values ``[2, B]`` of a team's observation and joint action.

        Args:
            obs: as in `CONTINUOUS_TEAM_KEYS`, ``[B, ...]``.
            actions: ``[B, n, d]``; those of absent members are ignored.
        """
        return self._values(self.critic, obs, actions)

    def sample_actions(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Draws actions, differentiable (Haarnoja et al. 2018, arXiv 1812.05905, section 5).

        Args:
            obs: ``[B, n, obs_dim]``.

        Returns:
            Actions ``[B, n, d]``, 0 in dimensions that a member lacks, and each member's
            log-density ``[B, n]`` in -1..1, exact where ``tanh`` saturates.
        """
        actions, logp = self._distribution(obs).rsample_and_logp()
        return actions.squeeze(-1) * self.has_dimension, (logp * self.has_dimension).sum(-1)

    def dist_inputs(self, obs: Tensor) -> Tensor:
        """Returns means and log-deviations before ``tanh``, ``[B, n, 2 d]``."""
        if self.obs_agent_id:
            ids = self._member_ids.expand(*obs.shape[:-1], self.num_members)
            obs = torch.cat([obs, ids], -1)
        inputs: Tensor = self.actor(obs)
        return inputs

    def _distribution(self, obs: Tensor) -> TorchSquashedGaussian:
        # RLlib's adds up log-densities over the last axis. With an axis of one behind the
        # dimensions they stay apart, and those that a member lacks can be left out.
        inputs = self.dist_inputs(obs).unflatten(-1, (2, self.action_dim)).transpose(-1, -2)
        return TorchSquashedGaussian.from_logits(inputs)

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """The current policy's actions at the batch's observations, and their log-densities."""
        actions, logp = self.sample_actions(batch[Columns.OBS][OBS])
        return {Columns.ACTIONS: actions, LOGP: logp}

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        means = self.dist_inputs(batch[Columns.OBS][OBS])[..., : self.action_dim]
        return {Columns.ACTIONS: torch.tanh(means) * self.has_dimension}

    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        drawn = self._distribution(batch[Columns.OBS][OBS]).sample()
        return {Columns.ACTIONS: drawn.squeeze(-1) * self.has_dimension}

    def _values(self, critic: nn.Module, obs: dict[str, Tensor], actions: Tensor) -> Tensor:
        alive = obs[ALIVE]
        joint = (actions * alive.unsqueeze(-1)).flatten(1)
        values: Tensor = critic(torch.cat([obs[STATE], alive, joint], -1))
        return values
