"""A team's RLModule: the actor that all members share, the critics, and a target copy of these."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from gymnasium import spaces
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.utils import make_target_network
from ray.rllib.core.rl_module.apis import InferenceOnlyAPI, TargetNetworkAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor, nn

from muxrl.servers.agents.keys import ACTION_MASK, ALIVE, OBS, STATE
from muxrl.servers.algorithms.joint_critics.teams import are_team_keys


class JointCriticRLModule(TorchRLModule, TargetNetworkAPI, InferenceOnlyAPI):
    """A team's RLModule, for the spaces of `muxrl.servers.algorithms.joint_critics.teams`.

    ``forward_exploration`` and ``forward_inference`` return the actions themselves, ``ACTIONS
    [B, n, d]`` in -1..1, or one-hot. They read ``OBS`` alone: a member acts on its own row and
    its id; and where there are masks, ``ACTION_MASK``.

    ``model_config`` keys: ``hidden_dim`` and ``obs_agent_id`` of `TeamReplayConfig`.

    Attributes:
        algorithm: its name, for messages.
        outputs_per_dimension: numbers that the actor gives for each dimension of an action.
        num_critics: 1 or 2.
        takes_choices: whether members may have Discrete actions.
    """

    algorithm: ClassVar[str]
    takes_choices: ClassVar[bool] = False
    outputs_per_dimension: ClassVar[int] = 1

    acting_keys: tuple[str, ...] = (OBS,)
    has_dimension: Tensor
    has_choices: bool
    _chooses: Tensor
    _member_ids: Tensor

    def setup(self) -> None:
        team_space, config = self.observation_space, self.model_config
        if (
            not isinstance(team_space, spaces.Dict)
            or not are_team_keys(team_space.spaces)
            or not isinstance(self.action_space, spaces.Box)
        ):
            raise ValueError(
                f"{self.algorithm} needs the spaces of a team with continuous actions (see "
                f"TeamVectors), not {team_space} and {self.action_space}; are the agents "
                "in a group?"
            )
        assert isinstance(config, dict)
        if ACTION_MASK in team_space.spaces:
            self.acting_keys = (OBS, ACTION_MASK)
        num_members, obs_dim = team_space[OBS].shape  # type: ignore[misc]
        (state_dim,) = team_space[STATE].shape  # type: ignore[misc]
        self.num_members: int = num_members
        self.action_dim: int = self.action_space.shape[1]
        self.obs_agent_id: bool = config["obs_agent_id"]
        hidden_dim: int = config["hidden_dim"]
        self.actor = make_actor(
            obs_dim + num_members * self.obs_agent_id,
            hidden_dim,
            self.outputs_per_dimension * self.action_dim,
        )
        joint_dim = state_dim + num_members * (1 + self.action_dim)
        self.critic = JointCritics(joint_dim, hidden_dim, self.num_critics)
        # [n, d]: 1 for the dimensions that a member's action has; see `TeamVectors`.
        has_dimension = torch.from_numpy(self.action_space.high > 0).float()
        self.register_buffer("has_dimension", has_dimension, persistent=False)
        # [n, 1]: whether a member's row is one-hot.
        chooses = (self.action_space.low == 0).all(-1, keepdims=True)
        self.register_buffer("_chooses", torch.from_numpy(chooses), persistent=False)
        self.has_choices = bool(chooses.any())
        if self.has_choices and not self.takes_choices:
            raise ValueError(f"{self.algorithm} takes no Discrete actions; use MADDPG or QMIX")
        self.register_buffer("_member_ids", torch.eye(num_members), persistent=False)

    @property
    def num_critics(self) -> int:
        return 2

    def get_non_inference_attributes(self) -> list[str]:
        return ["critic", "_target_critic"]

    def make_target_networks(self) -> None:
        self._target_critic = make_target_network(self.critic)

    def get_target_network_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        return [(self.critic, self._target_critic)]

    def forward_target(self, batch: dict[str, Any]) -> Tensor:
        """Returns the target critics' values ``[c, B]`` of ``OBS`` and ``ACTIONS``."""
        with torch.no_grad():
            return self._values(self._target_critic, batch[Columns.OBS], batch[Columns.ACTIONS])

    def values(self, obs: dict[str, Tensor], actions: Tensor) -> Tensor:
        """Returns the critics' values ``[c, B]`` of a team's observation and joint action.

        Args:
            obs: as a team observes, ``[B, ...]``.
            actions: ``[B, n, d]``; those of absent members are ignored.
        """
        return self._values(self.critic, obs, actions)

    def actor_outputs(self, obs: Tensor, actor: nn.Module | None = None) -> Tensor:
        """Returns what the actor gives, ``[B, n, outputs_per_dimension * d]``.

        Args:
            obs: ``[B, n, obs_dim]``.
            actor: another one than the module's own.
        """
        if self.obs_agent_id:
            ids = self._member_ids.expand(*obs.shape[:-1], self.num_members)
            obs = torch.cat([obs, ids], -1)
        outputs: Tensor = (actor or self.actor)(obs)
        return outputs

    def _values(self, critic: nn.Module, obs: dict[str, Tensor], actions: Tensor) -> Tensor:
        alive = obs[ALIVE]
        joint = (actions * alive.unsqueeze(-1)).flatten(1)
        values: Tensor = critic(torch.cat([obs[STATE], alive, joint], -1))
        return values


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
