"""A team whose members' actions are numbers to a critic, as one RLlib agent, and its seat.

======================  ================================  =========================================
observation key         shape, dtype                      meaning
======================  ================================  =========================================
``obs``                 ``[n, obs_dim]`` float32          one row per member, zero-padded
``state``               ``[state_dim]`` float32           what the critics may see while training
``alive``               ``[n]`` float32                   1 = the member is asked to act now
``action_mask``         ``[n, action_dim]`` float32       only if a member observes one: 1 = the
                                                          member may choose this action
======================  ================================  =========================================

A team's action is ``[n, action_dim]`` float32. Of a member with continuous actions it is in -1..1,
which is scaled to its bounds; of one with Discrete actions it is one-hot. A member with fewer
dimensions than another lacks the last ones. How a network knows: the bounds of the team's action
space are -1 and 1, 0 and 1 of a one-hot row, and 0 where a dimension is lacking. The mask of a
member that is absent or observes none is 1 in the dimensions that it has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from muxrl.protocol.spaces import Box, DictSpace, Discrete, Space, box_within
from muxrl.servers.agents.action_forms import action_form
from muxrl.servers.agents.keys import ACTION_MASK, ALIVE, OBS, STATE
from muxrl.servers.agents.seating import PolicySignature, keys_of
from muxrl.servers.agents.spaces import flat_size, split_mask, split_state
from muxrl.servers.agents.team_seats import TeamSeat, TeamSeating
from muxrl.servers.agents.teams import TeamProblem, TeamRows
from muxrl.servers.config import ServerPlan

CONTINUOUS_TEAM_KEYS = (OBS, STATE, ALIVE)


def are_team_keys(keys: Collection[str]) -> bool:
    """Whether these are the parts of what such a team observes."""
    return set(keys) - {ACTION_MASK} == set(CONTINUOUS_TEAM_KEYS)


@dataclass(frozen=True)
class ContinuousTeamSpec(TeamRows):
    """The members of one team and their spaces; actions are a bounded one-dimensional ``Box``, or
    Discrete, counted from 0."""

    def _check_actions(self, member: str) -> None:
        space = self.action_spaces[member]
        if isinstance(space, Discrete) and space.start == 0:
            return
        is_flat_box = isinstance(space, Box) and len(space.shape) == 1
        if not is_flat_box or not action_form(space).has_bounds:
            raise TeamProblem(
                f"this team cannot do the action space {space} of agent {member!r}: it takes a "
                "one-dimensional Box with bounds, or Discrete counted from 0"
            )

    @cached_property
    def action_dim(self) -> int:
        """Dimensions of the action of the member that has most."""
        return max(self._action_dims)

    @cached_property
    def observation_space(self) -> DictSpace:
        """What a team observes."""
        n = self.num_members
        parts: dict[str, Space] = {
            OBS: Box((n, self.obs_dim)),
            STATE: Box((self.state_dim,)),
            ALIVE: Box((n,), "float32", 0.0, 1.0),
        }
        if self.masked:
            parts[ACTION_MASK] = Box((n, self.action_dim), "float32", 0.0, 1.0)
        return DictSpace(parts)

    @cached_property
    def action_space(self) -> Box:
        """One action per member, absent ones too."""
        high = self.member_masks
        low = -high * np.array([not self._chooses(m) for m in self.members])[:, None]
        return box_within(low.astype(np.float32), high)

    @cached_property
    def _action_dims(self) -> list[int]:
        return [flat_size(self.action_spaces[m]) for m in self.members]

    @cached_property
    def member_masks(self) -> np.ndarray:
        dims = np.array(self._action_dims)[:, None]
        return (np.arange(self.action_dim) < dims).astype(np.float32)

    def _chooses(self, member: str) -> bool:
        return isinstance(self.action_spaces[member], Discrete)

    def join(self, actions: Mapping[str, Any]) -> np.ndarray:
        """Returns the team's action ``[n, action_dim]``.

        Args:
            actions: of some members. Rows of the others are NaN.
        """
        joined = np.zeros(self.action_space.shape, np.float32)
        for row, member in enumerate(self.members):
            if member in actions and self._chooses(member):
                joined[row, actions[member]] = 1.0
            elif member in actions:
                joined[row, : self._action_dims[row]] = actions[member]
            else:
                joined[row] = np.nan
        return joined


@dataclass(frozen=True)
class ContinuousTeamSeating(TeamSeating):
    """Every group is one RLlib agent with one policy; an agent in no group is a team of one.

    Teams are alike if they have as many members, pad observations to the same size, and if the
    members in the same rows have equally many dimensions of action, of the same kind.
    """

    follows_masks: bool = True

    @property
    def seat_class(self) -> type[TeamSeat]:
        return ContinuousTeamSeat

    def has_made(self, observation_space: Any) -> bool:
        # MAPPO's may have the same keys, but one row.
        return (
            are_team_keys(keys_of(observation_space))
            and len(observation_space.spaces[OBS].shape or ()) == 2
        )

    def signature(self, unit: str, plan: ServerPlan) -> PolicySignature:
        team = super().signature(unit, plan)
        acted = [self.action_form(plan.agents[m]).space for m in plan.groups[unit]]
        kinds = tuple((type(space).__name__, flat_size(space)) for space in acted)
        seen = [split_state(plan.agents[m].observation_space)[0] for m in plan.groups[unit]]
        is_masked = any(split_mask(space)[1] for space in seen)
        text = f"{team.text}, with action masks" if is_masked else team.text
        return PolicySignature((team.key, kinds, is_masked), text)

    def _actions_text(self, size: int) -> str:
        return f"actions of {size}"


class ContinuousTeamSeat(TeamSeat):
    """A team: recorded as one agent that is named after its group."""

    spec: ClassVar[type[TeamRows]] = ContinuousTeamSpec
    team: ContinuousTeamSpec

    @property
    def keys(self) -> tuple[str, ...]:
        return (*CONTINUOUS_TEAM_KEYS, ACTION_MASK) if self.masked else CONTINUOUS_TEAM_KEYS

    def write_rows(self, member: str, actions: np.ndarray) -> Any:
        form = self.forms[member]
        own = actions[..., : flat_size(form.space)]
        return form.write_rows(own.argmax(-1) if form.choices else own)
