"""A team: several agents that are one RLlib agent, as QMIX trains them.

Centralised training needs all members of a team in one transition. RLlib records episodes by
agent, so a team *is* an agent here, whose id is the name of the group. `TeamSpec` alone makes and
reads the observations and actions of a team with Discrete actions (teams with continuous ones, of
MASAC and MADDPG, have a spec of their own on the same `TeamRows`):

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
``alive`` 0, its last action -1, and its mask allows action 0 only, which is never sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from muxrl.protocol.spaces import Box, DictSpace, Discrete, MultiDiscrete, Space
from muxrl.servers.agents.keys import ACTION_MASK, ALIVE, LAST_ACTION, NO_ACTION, OBS, STATE
from muxrl.servers.agents.masks import NONE_AVAILABLE
from muxrl.servers.agents.spaces import flat_size

TEAM_KEYS = (OBS, STATE, ACTION_MASK, ALIVE, LAST_ACTION)
ACTING_KEYS = (OBS, ACTION_MASK, LAST_ACTION)
"""What a member acts on; the other keys are for the mixer."""

RewardRule = Literal["sum", "mean"]
TeamObservation = dict[str, np.ndarray]


class TeamProblem(ValueError):
    """A team cannot be formed, or data do not fit its spaces. Fix the caller."""


@dataclass(frozen=True)
class TeamRows(ABC):
    """The members of one team, in the order of their rows, and their spaces.

    What teams of all kinds have in common: how observations become rows, and what the state is.
    Smaller observations are padded with zeros. `TeamSpec` has Discrete actions; another kind of
    team comes with its algorithm.

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
        masked: members that observe an action mask.

    Raises:
        TeamProblem: no members, a member twice, a space missing or of another kind.
    """

    members: tuple[str, ...]
    observation_spaces: Mapping[str, Space]
    action_spaces: Mapping[str, Space]
    state_size: int | None = None
    marks_departed: bool = False
    masked: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not self.members:
            raise TeamProblem("a team needs at least one member")
        if len(set(self.members)) != len(self.members):
            raise TeamProblem(f"team {list(self.members)} names a member twice")
        if self.state_size is not None and self.state_size < 1:
            raise TeamProblem(f"state_size is {self.state_size}: give its length, or None")
        for member in self.members:
            check_observation_space(member, self.observation_spaces.get(member))
            if self.action_spaces.get(member) is None:
                raise TeamProblem(f"agent {member!r} of the team has no action space")
            self._check_actions(member)

    @abstractmethod
    def _check_actions(self, member: str) -> None:
        """Raises a `TeamProblem` if a member's actions are not of the kind that the team has."""

    @property
    def num_members(self) -> int:
        return len(self.members)

    @cached_property
    def obs_dim(self) -> int:
        """Length of the longest member observation."""
        return max(self._obs_shapes[m][0] for m in self.members)

    @cached_property
    def state_dim(self) -> int:
        return self.state_size or self.num_members * (self.obs_dim + self.marks_departed)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {member: row for row, member in enumerate(self.members)}

    @cached_property
    def _obs_shapes(self) -> dict[str, tuple[int, ...]]:
        return {m: self.observation_spaces[m].shape for m in self.members}  # type: ignore[union-attr]

    @property
    @abstractmethod
    def member_masks(self) -> np.ndarray:
        """Float32 ``[n, actions]``: the actions, or dimensions of one, that each member has."""

    def masks_of(self, is_here: Sequence[bool]) -> np.ndarray:
        """Returns the `member_masks` of a team some of whose members are absent."""
        return self.member_masks

    @property
    @abstractmethod
    def observation_space(self) -> DictSpace:
        """What the team observes: all that its members do, as one agent of RLlib."""

    @property
    @abstractmethod
    def action_space(self) -> Space:
        """One action per member, absent ones too."""

    @abstractmethod
    def join(self, actions: Mapping[str, Any]) -> np.ndarray:
        """Returns the team's action of some members' actions."""


@dataclass(frozen=True)
class TeamSpec(TeamRows):
    """A team whose members have Discrete actions, counted from 0.

    Members may differ in their number of actions: missing ones are masked out.
    """

    def _check_actions(self, member: str) -> None:
        check_member_spaces(member, self.observation_spaces[member], self.action_spaces[member])

    @cached_property
    def num_actions(self) -> int:
        """Number of actions of the member that has most."""
        return max(flat_size(self.action_spaces[m]) for m in self.members)

    @cached_property
    def observation_space(self) -> DictSpace:
        """What `observe` returns."""
        n = self.num_members
        return DictSpace(
            {
                OBS: Box((n, self.obs_dim)),
                STATE: Box((self.state_dim,)),
                ACTION_MASK: Box((n, self.num_actions), "float32", 0.0, 1.0),
                ALIVE: Box((n,), "float32", 0.0, 1.0),
                LAST_ACTION: Box((n,), "float32", float(NO_ACTION), self.num_actions - 1.0),
            }
        )

    @cached_property
    def action_space(self) -> MultiDiscrete:
        """One action per member, absent ones too; what `split` takes apart."""
        return MultiDiscrete((self.num_actions,) * self.num_members)

    @cached_property
    def member_masks(self) -> np.ndarray:
        """[n, n_actions]: the actions each member has at all."""
        sizes = [flat_size(self.action_spaces[m]) for m in self.members]
        return _read_only(
            (np.arange(self.num_actions) < np.array(sizes)[:, None]).astype(np.float32)
        )

    def masks_of(self, is_here: Sequence[bool]) -> np.ndarray:
        return np.where(np.array(is_here)[:, None], self.member_masks, self._absent_masks)

    @cached_property
    def _absent_masks(self) -> np.ndarray:
        mask = np.zeros((self.num_members, self.num_actions), np.float32)
        mask[:, 0] = 1.0
        return mask

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
        n = self.num_members
        obs, alive = np.zeros((n, self.obs_dim), np.float32), np.zeros(n, np.float32)
        masks, last = self._absent_masks.copy(), np.full(n, NO_ACTION, np.float32)
        for row, member in enumerate(self.members):
            if member not in observations:
                continue
            shape = self._obs_shapes[member]
            seen = observations[member]
            expected = f"its space says {list(shape)}"
            obs[row, : shape[0]] = _of_shape(shape, seen, f"agent {member!r} observed", expected)
            alive[row], masks[row] = 1.0, self.member_masks[row]
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
        if len(actions) != self.num_members:
            raise TeamProblem(
                f"{len(actions)} actions came for the {self.num_members} members "
                f"{list(self.members)}"
            )
        return {member: int(actions[self._rows[member]]) for member in acting}

    def join(self, actions: Mapping[str, int]) -> np.ndarray:
        """See `TeamRows`; `NO_ACTION` of the others."""
        return np.array([actions.get(m, NO_ACTION) for m in self.members], np.int64)


def _of_shape(shape: tuple[int, ...], value: Any, what: str, expected: str) -> np.ndarray:
    array = np.asarray(value)
    if array.shape != shape:
        raise TeamProblem(f"{what} the shape {list(array.shape)}, {expected}")
    return array


def _read_only(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


def check_member_spaces(
    member: str, observation_space: Space | None, action_space: Space | None
) -> None:
    """Checks that an agent can be a member of a team with Discrete actions.

    Raises:
        TeamProblem: it cannot; with the reason and what to do instead.
    """
    check_observation_space(member, observation_space)
    if not isinstance(action_space, Discrete) or action_space.start != 0:
        raise TeamProblem(
            f"a team cannot do the action space {action_space} of agent {member!r}: it learns "
            "one value per discrete action, counted from 0"
        )


def check_observation_space(member: str, observation_space: Space | None) -> None:
    """Checks that what an agent observes can be a row of a team's observation.

    Raises:
        TeamProblem: it cannot; with the reason and what to do instead.
    """
    if observation_space is None:
        raise TeamProblem(f"agent {member!r} of the team has no observation space")
    if not isinstance(observation_space, Box) or len(observation_space.shape) != 1:
        raise TeamProblem(
            f"a team cannot read the observation space {observation_space} of agent {member!r}: "
            "it takes a one-dimensional Box; flatten the observation first"
        )


def team_reward(rewards: Mapping[str, float], how: RewardRule, n: int) -> float:
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
