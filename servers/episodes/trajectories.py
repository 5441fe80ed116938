"""What was recorded of an episode: pieces for the learner, with a trajectory for each seat.

::

    Chunk        a piece of one episode: the env steps between two cuts
    Trajectory   the transitions of one seat in it, in one life

Rows are arrays, or dicts of arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from muxrl.servers.agents.keys import ACTION_MASK, ALIVE, OBS, STATE

_NAMED = frozenset({OBS, ACTION_MASK, STATE, ALIVE})
"""Parts of observations that have fields of their own in a separated trajectory."""


@dataclass(slots=True)
class Trajectory:
    """Consecutive transitions of one seat.

    Attributes:
        id: of the seat's life in the episode; later pieces of that life have the same id.
        episode_id: of the episode.
        seat_id: the seat, an agent or a team.
        policy_id: the policy that acts for it.
        observations: rows ``[T + 1]``: one more than there are transitions, since the final
            observation is included.
        actions: rows ``[T]``, as the policy chose them.
        rewards: likewise, float.
        outputs: by name, what the policy returned with each action (log-probability and the like).
        t: number of transitions of this life in earlier pieces.
        is_terminated: whether the seat ended, so that nothing follows.
        is_truncated: whether it ended by a limit; then its value is bootstrapped from the last
            observation, as in a piece that continues (which is neither).
        masks: action masks, if `separated` from the observations; None: they are part of them.
        states: global states, likewise.
        present: for a team, likewise: 1 for the members that were asked to act.
        inputs: further separated parts, by key: agent id, last action.
    """

    id: str
    episode_id: str
    seat_id: str
    policy_id: str
    observations: Any
    actions: Any
    rewards: Any
    outputs: Mapping[str, Any]
    t: int = 0
    is_terminated: bool = False
    is_truncated: bool = False
    masks: Any = None
    states: Any = None
    present: Any = None
    inputs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, Any]:
        """All parts of the observations by key, if they are separated."""
        parts = parts_of(self.observations, self.masks, self.present, self.inputs)
        return parts if self.states is None else {**parts, STATE: self.states}

    @property
    def agent_id(self) -> str:
        """The seat's id, if each agent has a seat of its own."""
        return self.seat_id

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def key(self) -> str:
        """The name of this life in its episode: the seat's id, or "seat~2" for its second life."""
        return self.id.removeprefix(f"{self.episode_id}_")


@dataclass(slots=True)
class Chunk:
    """A piece of one episode, with the version of the weights at each of its steps.

    Attributes:
        episode_id: of the episode.
        t_started: number of env steps before it.
        trajectories: of the seats that have a transition in it, in the order of the seats.
        weights_seq_nos: one for each env step.
        is_terminated: whether the episode is over, and no value is bootstrapped.
        is_truncated: whether the episode is over, and some values are bootstrapped.
    """

    episode_id: str
    t_started: int
    trajectories: list[Trajectory]
    weights_seq_nos: list[int] = field(default_factory=list)
    is_terminated: bool = False
    is_truncated: bool = False

    @property
    def num_env_steps(self) -> int:
        return len(self.weights_seq_nos)

    @property
    def is_done(self) -> bool:
        """Whether it is the last piece of its episode."""
        return self.is_terminated or self.is_truncated


def separated(one: Trajectory) -> Trajectory:
    """Returns a trajectory whose masks, states and other parts are separated from the observations;
    the same one if its observations have no parts."""
    parts = one.observations
    if not isinstance(parts, dict):
        return one
    return replace(
        one,
        observations=parts[OBS],
        masks=parts.get(ACTION_MASK),
        states=parts.get(STATE),
        present=parts.get(ALIVE),
        inputs={key: part for key, part in parts.items() if key not in _NAMED},
    )


def parts_of(
    observations: Any, masks: Any, present: Any, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the parts of observations by key; see `muxrl.servers.agents.keys`."""
    parts = {OBS: observations, **inputs}
    if masks is not None:
        parts[ACTION_MASK] = masks
    if present is not None:
        parts[ALIVE] = present
    return parts


def concatenated(parts: Sequence[Any]) -> Any:
    """Concatenates the rows of all parts."""
    if isinstance(parts[0], dict):
        return {key: concatenated([part[key] for part in parts]) for key in parts[0]}
    return np.concatenate(parts)


def stack(rows: Sequence[Any]) -> Any:
    """Stacks arrays along a new first axis, and dicts of arrays key by key."""
    if isinstance(rows[0], dict):
        return {key: stack([row[key] for row in rows]) for key in rows[0]}
    return np.array(rows)  # faster than `np.stack`


def flat(rows: Any) -> Any:
    """Returns arrays ``[E, S, ...]`` as ``[E * S, ...]``."""
    if isinstance(rows, dict):
        return {key: flat(part) for key, part in rows.items()}
    return rows[0] if len(rows) == 1 else rows.reshape((-1, *rows.shape[2:]))
