"""The base of MADDPG and MASAC: settings, a replay of single steps, members that act."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from muxrl.protocol.messages import DenseLayer, PolicyNetwork
from muxrl.servers.agents.keys import AGENT_ID, ALIVE, OBS, STATE
from muxrl.servers.algorithms.columns import REWARDS
from muxrl.servers.algorithms.networks import ParallelMLP, dense_layers
from muxrl.servers.algorithms.replay.steps import StepReplay
from muxrl.servers.algorithms.replay.team_trainer import TeamTrainer
from muxrl.servers.algorithms.settings.teams import JointCriticSettings
from muxrl.servers.algorithms.torch_trainer import Asked
from muxrl.servers.algorithms.update import Step, Targets
from muxrl.servers.trainers.interface import PolicySpec, Rows

CRITIC, POLICY = "qf", "policy"
"""Names of the updates, as in RLlib's SAC; the metric of a loss is ``NAME_loss``."""


class TeamNet(nn.Module):
    """An actor, critics, and their target networks.

    The lower value of two critics counts: Fujimoto et al. 2018 (arXiv 1802.09477), "clipped double
    Q". The critics differ only in their initial weights.

    Args:
        policy: has the spaces of `muxrl.servers.algorithms.joint_critics.teams`.
        own: the settings.
        outputs_per_dimension: outputs of the actor for each dimension of an action.
        num_critics: c.
        has_target_actor: whether the actor has a target network, too.
    """

    member_ids: Tensor

    def __init__(
        self,
        policy: PolicySpec,
        own: JointCriticSettings,
        *,
        outputs_per_dimension: int = 1,
        num_critics: int = 2,
        has_target_actor: bool = False,
    ) -> None:
        super().__init__()
        num_members, obs_dim = policy.observation_space.shape
        action_dim = policy.action_space.shape[1]  # type: ignore[index]
        self.has_ids, hidden_dim = own.obs_agent_id, own.hidden_dim
        self.actor = nn.Sequential(
            nn.Linear(obs_dim + num_members * self.has_ids, hidden_dim),
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
        """Returns the actor's outputs before ``tanh``, ``[B, n, outputs_per_dimension * d]``.

        Args:
            obs: ``[B, n, obs_dim]``.
            actor: the actor to use; None: the one that is learned.
        """
        if self.has_ids:
            ids = self.member_ids.expand(*obs.shape[:-1], -1)
            obs = torch.cat([obs, ids], -1)
        return (actor or self.actor)(obs)

    def values(
        self,
        seen: Mapping[str, Tensor],
        actions: Tensor,
        critic: nn.Module | None = None,
        num: int | None = None,
    ) -> Tensor:
        """Returns the critics' values ``[c, B]`` of a team's observations and actions.

        Args:
            seen: parts of the team's observations, ``[B, ...]``.
            actions: ``[B, n, d]``; those of absent members are ignored.
            critic: the critics to use; None: those that are learned.
            num: c, to use only the first critics; None: all.
        """
        alive = seen[ALIVE]
        joint = (actions * alive.unsqueeze(-1)).flatten(1)
        values: Tensor = (critic or self.critic)(torch.cat([seen[STATE], alive, joint], -1), num)
        return values.squeeze(-1)


class JointCriticTrainer(TeamTrainer):
    """Learns an actor that all members share, and critics of the team's joint action.

    Actions are ``[n, d]`` as in `TeamVectors`: in -1..1, or one-hot for a member with Discrete
    actions.
    """

    settings: JointCriticSettings
    net: TeamNet
    targets: Targets

    def __init__(self, policy: PolicySpec, settings: JointCriticSettings) -> None:
        space: Any = policy.action_space
        self._dimensions: np.ndarray = (space.high > 0).astype(np.float32)
        """1 for the dimensions that each member's action has, ``[n, d]``."""
        self._ids = np.eye(len(self._dimensions), dtype=np.float32)
        super().__init__(policy, settings)
        self.has_dimension = torch.from_numpy(self._dimensions).to(self.device)
        net = self.net
        pairs = [(net.critic, net.target_critic)]
        if net.target_actor is not None:
            pairs.append((net.actor, net.target_actor))  # type: ignore[arg-type]
        self.targets = Targets(*pairs)

    def make_replay(self) -> StepReplay:
        return StepReplay(self.settings.buffer_capacity_steps, self.policy.seed)

    def make_steps(self) -> dict[str, Step]:
        own, net = self.settings, self.net
        critic, actor = list(net.critic.parameters()), list(net.actor.parameters())
        return {
            CRITIC: Step({"": critic}, lambda: own.critic_lr, clip=own.grad_clip),
            POLICY: Step({"": actor}, lambda: own.actor_lr, clip=own.grad_clip),
        }

    # --- acting -------------------------------------------------------------------------

    def acting_modules(self) -> Sequence[nn.Module]:
        return [self.net.actor]

    def acting_layers(self) -> list[DenseLayer] | None:
        return dense_layers(self.net.actor)

    def layer_inputs(self, rows: Rows) -> np.ndarray:
        obs = rows.parts[OBS]
        if not self.net.has_ids:
            return obs
        return np.concatenate([obs, np.broadcast_to(self._ids, (len(obs), *self._ids.shape))], -1)

    def acting_network(self) -> PolicyNetwork | None:
        """Returns None, since the actor's outputs are more than a score of each action."""
        return None

    def outputs_of(self, rows: Rows) -> np.ndarray:
        """Returns the actor's outputs before ``tanh``, ``[B, n, k]``; see `TeamNet.outputs`."""
        return self.asked_of_net(rows, lambda net, seen: net.outputs(seen[OBS]))  # type: ignore[operator]

    scores_name = "logits"

    @property
    def input_keys(self) -> tuple[str, ...]:
        return (OBS,) + (AGENT_ID,) * self.net.has_ids

    def network(self) -> nn.Module:
        """Returns the module from a member's parts to its actions before ``tanh``, for files."""
        return Asked(self.net.actor, lambda actor, *seen: actor(torch.cat(seen, -1)))

    def greedy(self, scores: Tensor) -> Tensor:
        """Returns the greedy actions of a member with a Box, from the outputs of `network`."""
        return scores[..., : self._dimensions.shape[1]].tanh()

    # --- learning -----------------------------------------------------------------------

    def noise(self, like: Tensor) -> Tensor:
        """Draws a tensor of the shape of `like` from a standard normal distribution."""
        drawn = self.rng.standard_normal(like.shape, np.float32)
        return torch.from_numpy(drawn).to(self.device)

    def measured(
        self, losses: Mapping[str, Tensor], batch: Mapping[str, Any], values: Tensor, target: Tensor
    ) -> dict[str, Any]:
        """Returns the metrics of an update; see `ReplayTrainer.update_on`.

        Args:
            losses: by name of the update, of the updates that were made.
            batch: the batch that was learned from.
            values: of the critics.
            target: of the critics.
        """
        steps = self.steps
        return {
            **{f"{name}_loss": loss.detach() for name, loss in losses.items()},
            **{f"{name}_grad_norm": steps[name].norms.get("", 0.0) for name in losses},
            **{f"{name}_learning_rate": step.lr for name, step in steps.items()},
            "total_loss": lambda: sum(loss.detach() for loss in losses.values()),
            "qf_mean": values.detach().mean,
            "target_mean": target.mean,
            "reward_mean": batch[REWARDS].mean,
        }
