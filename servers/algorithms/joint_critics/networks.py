"""A team's networks: the actor that all members share, the critics, and target copies."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from muxrl.servers.agents.keys import ALIVE, STATE
from muxrl.servers.algorithms.networks import ParallelMLP
from muxrl.servers.trainers.interface import PolicySpec


class TeamNet(nn.Module):
    """An actor, critics, and copies of both that learning follows.

    Of two critics the lower value counts: Fujimoto et al. 2018 (arXiv 1802.09477), "clipped double
    Q". They are alike but for their first weights.

    Args:
        policy: has the spaces of `muxrl.servers.algorithms.joint_critics.teams`.
        hidden_dim: units of both hidden layers of each network.
        outputs_per_dimension: numbers that the actor gives for each dimension of an action.
        num_critics: c.
        has_ids: whether the actor reads whom it acts for.
        has_target_actor: whether there is a copy of the actor, too.
    """

    member_ids: Tensor

    def __init__(
        self,
        policy: PolicySpec,
        hidden_dim: int,
        *,
        outputs_per_dimension: int = 1,
        num_critics: int = 2,
        has_ids: bool = True,
        has_target_actor: bool = False,
    ) -> None:
        super().__init__()
        num_members, obs_dim = policy.observation_space.shape
        action_dim = policy.action_space.shape[1]  # type: ignore[index]
        self.has_ids = has_ids
        self.actor = nn.Sequential(
            nn.Linear(obs_dim + num_members * has_ids, hidden_dim),
            nn.ReLU(),
            nn.Linear(hidden_dim, hidden_dim),
            nn.ReLU(),
            nn.Linear(hidden_dim, outputs_per_dimension * action_dim),
        )
        joint_dim = policy.state_size + num_members * (1 + action_dim)
        self.critic = ParallelMLP(num_critics, (joint_dim, hidden_dim, hidden_dim, 1))
        self.target_actor = copy.deepcopy(self.actor) if has_target_actor else None
        self.target_critic = copy.deepcopy(self.critic)
        self.register_buffer("member_ids", torch.eye(num_members), persistent=False)

    def outputs(self, obs: Tensor, actor: nn.Module | None = None) -> Tensor:
        """Returns what the actor gives before ``tanh``, ``[B, n, outputs_per_dimension * d]``.

        Args:
            obs: ``[B, n, obs_dim]``.
            actor: another one than its own.
        """
        if self.has_ids:
            ids = self.member_ids.expand(*obs.shape[:-1], -1)
            obs = torch.cat([obs, ids], -1)
        outputs: Tensor = (actor or self.actor)(obs)
        return outputs

    def values(
        self,
        seen: Mapping[str, Tensor],
        actions: Tensor,
        critic: nn.Module | None = None,
        num: int | None = None,
    ) -> Tensor:
        """Returns the critics' values ``[c, B]`` of what a team observes and does.

        Args:
            seen: parts of its observations, ``[B, ...]``.
            actions: ``[B, n, d]``; those of absent members are ignored.
            critic: others than its own.
            num: of them, the first ones; None: all.
        """
        alive = seen[ALIVE]
        joint = (actions * alive.unsqueeze(-1)).flatten(1)
        values: Tensor = (critic or self.critic)(torch.cat([seen[STATE], alive, joint], -1), num)
        return values.squeeze(-1)
