"""A team: several agents that are one RLlib agent, as QMIX trains them.

Centralised training needs all members of a team in one transition. RLlib records episodes by
agent, so a team *is* an agent here, whose id is the name of the group:

======================  ================================  =========================================
observation key         shape, dtype                      meaning
======================  ================================  =========================================
``obs``                 ``[n, obs_dim]`` float32          one row per member, zero-padded
``state``               ``[state_dim]`` float32           what the mixer may see while training
``action_mask``         ``[n, n_actions]`` float32        1 = the member may choose this action
``alive``               ``[n]`` float32                   1 = the member is asked to act now
``last_action``         ``[n]`` float32                   its previous action, -1 for none
======================  ================================  =========================================

A member that has departed or is not asked to act at this step is *absent*: its row is zero, its
``alive`` 0, its last action -1, and its mask allows action 0 only, which is never sent. A server
reads them with `muxrl.servers.agents.inputs`; `TeamSpec` is for environments of plain RLlib.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from muxrl.protocol.spaces import Box, DictSpace, Discrete, MultiDiscrete, Space
from muxrl.servers.agents.action_forms import action_form
from muxrl.servers.agents.keys import ACTION_MASK, ALIVE, LAST_ACTION, NO_ACTION, OBS, STATE
from muxrl.servers.agents.masks import NONE_AVAILABLE
from muxrl.servers.agents.seat_actions import TeamChoices, TeamProblem, no_choices
from muxrl.servers.agents.seating import TEAMS
from muxrl.servers.agents.seats import Member, Seat
from muxrl.servers.agents.spaces import flat_size

TEAM_KEYS = tuple(one.key for one in TEAMS.inputs)
TeamObservation = dict[str, np.ndarray]


@dataclass(frozen=True)
class TeamSpec:
    """A team whose members have Discrete actions, counted from 0.

    Members may differ in their number of actions: missing ones are masked out. Smaller observations
    are padded with zeros.

    Args:
        members: agent ids, in the order of the rows of ``obs``.
        observation_spaces: each member's space, a one-dimensional ``Box``.
        action_spaces: each member's space.
        state_size: length of the global state; None if there is none, and the members' padded
            observations in a row stand for it.
        marks_departed: whether that row ends with a 1 for every member that has departed. Where
            members also come late, zeros alone do not tell a member that has departed from one
            that is still to come, and the mixer would value a death like a late arrival. Without
            effect where there is a `state_size`.

    Raises:
        TeamProblem: no members, a member twice, a space missing or of another kind.
    """

    members: tuple[str, ...]
    observation_spaces: Mapping[str, Space]
    action_spaces: Mapping[str, Space]
    state_size: int | None = None
    marks_departed: bool = False

    def __post_init__(self) -> None:
        if not self.members:
            raise TeamProblem("a team needs at least one member")
        if len(set(self.members)) != len(self.members):
            raise TeamProblem(f"team {list(self.members)} names a member twice")
        if self.state_size is not None and self.state_size < 1:
            raise TeamProblem(f"state_size is {self.state_size}: give its length, or None")
        for member in self.members:
            observed, acted = self.observation_spaces.get(member), self.action_spaces.get(member)
            if observed is None:
                raise TeamProblem(f"agent {member!r} of the team has no observation space")
            if not isinstance(observed, Box) or len(observed.shape) != 1:
                raise TeamProblem(
                    f"a team cannot read the observation space {observed} of agent "
                    f"{member!r}: it takes a one-dimensional Box; flatten the observation first"
                )
            if acted is None:
                raise TeamProblem(f"agent {member!r} of the team has no action space")
            if not isinstance(acted, Discrete) or acted.start != 0:
                raise no_choices(member, acted)

    @property
    def obs_dim(self) -> int:
        """Length of the longest member observation."""
        return max(flat_size(self.observation_spaces[m]) for m in self.members)

    @property
    def num_actions(self) -> int:
        """Number of actions of the member that has most."""
        return max(flat_size(self.action_spaces[m]) for m in self.members)

    @property
    def state_dim(self) -> int:
        return self.state_size or len(self.members) * (self.obs_dim + self.marks_departed)

    @cached_property
    def _seat(self) -> Seat:
        forms = {m: action_form(self.action_spaces[m]) for m in self.members}
        return Seat(
            seat_id="team",
            policy_id="team",
            agents=tuple(
                Member(m, self.observation_spaces[m], forms[m], np.asarray) for m in self.members
            ),
            members=self.members,
            inputs=TEAMS.inputs,
            actions=TeamChoices(forms),
            own_space=Box((len(self.members), self.obs_dim)),
            is_team=True,
            state_size=self.state_dim,
            reward="sum",
        )

    @property
    def observation_space(self) -> DictSpace:
        """What `observe` returns."""
        space = self._seat.observation_space
        assert isinstance(space, DictSpace)
        return space

    @property
    def action_space(self) -> MultiDiscrete:
        """One action per member, absent ones too; what `split` takes apart."""
        return MultiDiscrete((self.num_actions,) * len(self.members))

    def observe(
        self,
        observations: Mapping[str, Any],
        action_masks: Mapping[str, Any] | None = None,
        state: Any | None = None,
        last_actions: Mapping[str, int] | None = None,
        departed: Collection[str] = (),
    ) -> TeamObservation:
        """Returns the team's observation, for environments of plain RLlib.

        Args:
            observations: the members that are asked to act now, ``[obs size]`` each. Agents of
                other teams are ignored.
            action_masks: ``[n actions of that member]``; a member without one may choose any of
                its actions.
            state: ``[state_size]``, required if and only if the team was given a `state_size`.
            last_actions: each member's previous action, if it has had one.
            departed: agents that have left for good, members or not; for `marks_departed`.

        Returns:
            A dict of float32 arrays as in `observation_space`.

        Raises:
            TeamProblem: a wrong shape, or a member that may not choose any action.
        """
        n, actions = len(self.members), self._seat.actions
        obs, alive = np.zeros((n, self.obs_dim), np.float32), np.zeros(n, np.float32)
        masks, last = actions.absent_masks.copy(), np.full(n, NO_ACTION, np.float32)
        for row, member in enumerate(self.members):
            if member not in observations:
                continue
            shape = (flat_size(self.observation_spaces[member]),)
            seen = observations[member]
            expected = f"its space says {list(shape)}"
            obs[row, : shape[0]] = _of_shape(shape, seen, f"agent {member!r} observed", expected)
            alive[row], masks[row] = 1.0, actions.masks[row]
            last[row] = (last_actions or {}).get(member, NO_ACTION)
            if (action_masks or {}).get(member) is not None:
                shape = (flat_size(self.action_spaces[member]),)
                what = f"the action mask of agent {member!r} has"
                given = (action_masks or {})[member]
                mask = _of_shape(shape, given, what, f"it has {shape[0]} actions")
                if not mask.any():
                    raise TeamProblem(NONE_AVAILABLE.format(member))
                masks[row, : shape[0]] = mask != 0
        if (self.state_size is None) != (state is None):
            raise TeamProblem(
                f"team {list(self.members)} needs a state of {self.state_size} numbers at every "
                "step and got none"
                if state is None
                else f"team {list(self.members)} was sent a state but has no state_size; set it"
            )
        if self.state_size is not None:
            expected = f"state_size is {self.state_size}"
            whole = _of_shape((self.state_size,), state, "the state has", expected)
        else:
            gone = [float(m in departed) for m in self.members] if self.marks_departed else []
            whole = np.append(obs.reshape(-1), np.array(gone))
        return {
            OBS: obs,
            STATE: whole.astype(np.float32),
            ACTION_MASK: masks,
            ALIVE: alive,
            LAST_ACTION: last,
        }

    def split(
        self, team_action: np.ndarray | Iterable[int], acting: Iterable[str]
    ) -> dict[str, int]:
        """Returns the actions of the members that act now, out of a team action ``[n]``."""
        actions = np.asarray(team_action).tolist()
        if len(actions) != len(self.members):
            raise TeamProblem(
                f"{len(actions)} actions came for the {len(self.members)} members "
                f"{list(self.members)}"
            )
        return {member: int(actions[self.members.index(member)]) for member in acting}


def _of_shape(shape: tuple[int, ...], value: Any, what: str, expected: str) -> np.ndarray:
    array = np.asarray(value)
    if array.shape != shape:
        raise TeamProblem(f"{what} the shape {list(array.shape)}, {expected}")
    return array


def team_reward(rewards: Mapping[str, float], how: Literal["sum", "mean"], n: int) -> float:
    """Returns a team's reward at one step.

    Args:
        rewards: of its members; a member without one counts as 0.
        how: ``"sum"``, or ``"mean"``: the sum divided by `n`, so that an episode's return does
            not grow with the size of the team.
        n: the number of members, absent ones included.
    """
    total = float(sum(rewards.values()))
    if how == "sum":
        return total
    if how == "mean":
        return total / n
    raise TeamProblem(f"unknown team reward {how!r}: it is 'sum' or 'mean'")
