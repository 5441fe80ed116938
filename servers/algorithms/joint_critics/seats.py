"""Seats of teams with continuous actions: as QMIX's, but for what a member does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium

from muxrl.servers.algorithms.joint_critics.teams import CONTINUOUS_TEAM_KEYS, ContinuousTeamSpec
from muxrl.servers.algorithms.team_replay.seats import TeamSeat, TeamSeating
from muxrl.servers.config import ServerPlan
from muxrl.servers.seating import PolicySignature, keys_of
from muxrl.servers.spaces import flat_size
from muxrl.servers.teams import OBS, TeamRows


@dataclass(frozen=True)
class ContinuousTeamSeating(TeamSeating):
    """Every group is one RLlib agent with one policy; an agent in no group is a team of one.

    Teams are alike if they have as many members, pad observations to the same size, and if the
    members in the same rows have equally many dimensions of action.
    """

    # Masks are for Discrete actions, and any other use of them is refused by name.
    follows_masks: bool = True

    @property
    def seat_class(self) -> type[TeamSeat]:
        return ContinuousTeamSeat

    def has_made(self, observation_space: gymnasium.Space | None) -> bool:
        if keys_of(observation_space) != set(CONTINUOUS_TEAM_KEYS):
            return False
        assert isinstance(observation_space, gymnasium.spaces.Dict)
        # MAPPO's may have the same keys, but one row.
        return len(observation_space[OBS].shape or ()) == 2

    def signature(self, unit: str, plan: ServerPlan) -> PolicySignature:
        team = super().signature(unit, plan)
        dims = tuple(flat_size(plan.agents[m].action_space) for m in plan.groups[unit])
        return PolicySignature((team.key, dims), team.text)

    def _actions_text(self, size: int) -> str:
        return f"actions of {size}"


class ContinuousTeamSeat(TeamSeat):
    """A team: recorded as one agent that is named after its group."""

    spec: ClassVar[type[TeamRows]] = ContinuousTeamSpec
    team: ContinuousTeamSpec

    def read_logged(self, logged: Mapping[str, Any]) -> Any:
        if not any(m in logged for m in self.members):
            return None
        return self.team.join(logged)
