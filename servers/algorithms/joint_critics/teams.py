"""A team whose members have continuous actions, as one RLlib agent, and its seat.

======================  ================================  =========================================
observation key         shape, dtype                      meaning
======================  ================================  =========================================
``obs``                 ``[n, obs_dim]`` float32          one row per member, zero-padded
``state``               ``[state_dim]`` float32           what the critics may see while training
``alive``               ``[n]`` float32                   1 = the member is asked to act now
======================  ================================  =========================================

A team's action is ``[n, action_dim]`` float32 in -1..1, which is scaled to each member's bounds. A
member with fewer dimensions than another lacks the last ones: the bounds of the team's action space
are 0 there, which is how a network knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from ray.rllib.utils.spaces.space_utils import normalize_action, unsquash_action

from muxrl.servers.algorithms.team_replay.seats import TeamSeat, TeamSeating
from muxrl.servers.config import ServerPlan
from muxrl.servers.seating import PolicySignature, keys_of
from muxrl.servers.spaces import flat_size
from muxrl.servers.teams import ALIVE, OBS, STATE, TeamObservation, TeamProblem, TeamRows

CONTINUOUS_TEAM_KEYS = (OBS, STATE, ALIVE)


@dataclass(frozen=True)
class ContinuousTeamSpec(TeamRows):
    """The members of one team and their spaces; actions are a bounded one-dimensional ``Box``."""

    def _check_actions(self, member: str) -> None:
        space = self.action_spaces[member]
        is_flat_box = isinstance(space, spaces.Box) and len(space.shape) == 1
        if not is_flat_box or not space.is_bounded("both"):  # type: ignore[attr-defined]
            raise TeamProblem(
                f"this team cannot do the action space {space} of agent {member!r}: it takes a "
                "one-dimensional Box with bounds; use QMIX or MAPPO"
            )

    @cached_property
    def action_dim(self) -> int:
        """Dimensions of the action of the member that has most."""
        return max(self._action_dims)

    @cached_property
    def observation_space(self) -> spaces.Dict:
        """What `observe` returns."""
        n, low, high = self.num_members, -np.inf, np.inf
        return spaces.Dict(
            {
                OBS: spaces.Box(low, high, (n, self.obs_dim), np.float32),
                STATE: spaces.Box(low, high, (self.state_dim,), np.float32),
                ALIVE: spaces.Box(0.0, 1.0, (n,), np.float32),
            }
        )

    @cached_property
    def action_space(self) -> spaces.Box:
        """One action per member, absent ones too; what `split` takes apart."""
        dims = np.array(self._action_dims)[:, None]
        high = (np.arange(self.action_dim) < dims).astype(np.float32)
        return spaces.Box(-high, high, dtype=np.float32)

    @cached_property
    def _action_dims(self) -> list[int]:
        return [self.action_spaces[m].shape[0] for m in self.members]  # type: ignore[index]

    def observe(
        self,
        observations: Mapping[str, Any],
        action_masks: Mapping[str, Any] | None = None,
        state: Any | None = None,
        last_actions: Mapping[str, Any] | None = None,
        departed: Collection[str] = (),
    ) -> TeamObservation:
        """See `TeamRows`; there are no masks, and the last actions are not part of it."""
        obs, alive = self._observed(observations)
        return {OBS: obs, STATE: self._state(state, obs, departed), ALIVE: alive}

    def split(self, team_action: np.ndarray, acting: Iterable[str]) -> dict[str, np.ndarray]:
        """Returns the actions of the members that act now, scaled to their bounds.

        Args:
            team_action: ``[n, action_dim]`` in -1..1.
            acting: some of the members.
        """
        team_action = np.asarray(team_action)
        if team_action.shape != self.action_space.shape:
            raise TeamProblem(
                f"actions of the shape {list(team_action.shape)} came for the members "
                f"{list(self.members)}, expected {list(self.action_space.shape)}"
            )
        actions = {}
        for member in acting:
            row = self._rows[member]
            own = team_action[row, : self._action_dims[row]]
            actions[member] = unsquash_action(own, self.action_spaces[member])
        return actions

    def join(self, actions: Mapping[str, Any]) -> np.ndarray:
        """Returns the team's action ``[n, action_dim]``: the inverse of `split`.

        Args:
            actions: of some members, within their bounds. Rows of the others are NaN.
        """
        joined = np.zeros(self.action_space.shape, np.float32)
        for row, member in enumerate(self.members):
            if member in actions:
                space = self.action_spaces[member]
                joined[row, : self._action_dims[row]] = normalize_action(actions[member], space)
            else:
                joined[row] = np.nan
        return joined


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

    def has_made(self, observation_space: spaces.Space | None) -> bool:
        if keys_of(observation_space) != set(CONTINUOUS_TEAM_KEYS):
            return False
        assert isinstance(observation_space, spaces.Dict)
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
