"""The observations and actions in a step of several episodes, in dicts or in arrays.

Both forms are turned into rows (`muxrl.protocol.rows`) here, and rows into both forms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.vector_simulation import Rows
from muxrl.client.assignment import Part
from muxrl.client.errors import EpisodeMisuse
from muxrl.protocol.errors import MalformedMessage
from muxrl.protocol.messages import ActionRows, Actions, Refused, Step, StepRows
from muxrl.protocol.rows import (
    Index,
    Kind,
    Layout,
    NotInRows,
    each_array,
    index_of,
    leaves,
    put,
    row_of,
    stack,
)
from muxrl.protocol.spaces import DictSpace, Discrete, Space, TupleSpace, leaf_type


def handle_rows(
    values: StepValues, part: Part, item: StepRows, reply: Any
) -> Mapping[int, Refused] | None:
    """Stores the actions of a server's answer to rows; returns its refusals by row.

    Raises:
        MalformedMessage: the reply is no answer to these rows.
    """
    num_rows = len(item.episode_ids)
    if type(reply) is ActionRows and not reply.replies:
        kinds = part.layout.acted
        if len(reply.actions) != len(kinds):
            raise MalformedMessage(
                f"its actions are of {len(reply.actions)} action spaces, but {len(kinds)} were "
                "expected"
            )
        for kind, rows in zip(kinds, reply.actions, strict=True):
            shapes = [getattr(one, "shape", None) for one in leaves(kind.space, rows)]
            expected = [(num_rows, len(kind.agents), *shape) for shape in kind.shapes]
            if shapes != expected:
                raise MalformedMessage(
                    f"its actions in {kind.space} have the shapes {shapes}, but {expected} were "
                    "expected"
                )
            values.store(kind, rows)
        return None
    if isinstance(reply, Refused):  # all rows at once
        return dict.fromkeys(range(num_rows), reply)
    if type(reply) is not ActionRows or len(reply.replies) != num_rows:
        raise MalformedMessage(f"the answer to the steps of {num_rows} episodes was {reply!r:.200}")
    refused: dict[int, Refused] = {}
    for row, one in enumerate(reply.replies):
        if isinstance(one, Refused):
            refused[row] = one
        else:
            values.store_of(row, part.agents, one)
    return refused


def handle_step(
    values: StepValues, part: Part, row: int, item: Step, reply: Any
) -> Mapping[int, Refused] | None:
    """Stores the actions of a server's answer to a step of one episode; returns a refusal."""
    if type(reply) is Actions:
        values.store_of(row, part.agents, reply)
        return None
    if isinstance(reply, Refused):
        return {0: reply}
    raise MalformedMessage(f"a message of type {type(reply).__name__} is no answer to a step")


# --- in dicts -------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class InDicts:
    """The values of a step of ``E`` episodes, in a dict by agent for each episode.

    Args:
        observations: of each episode, by agent; agents that do not act are ignored.
        given_states: the global state of each episode, for servers that read it.
        actions: of each episode, by agent: receives the answers.
    """

    observations: Sequence[Mapping[str, Any]]
    given_states: Sequence[Any]
    actions: Sequence[dict[str, Any]]

    def of(self, rows: Sequence[int]) -> InDicts:
        """Returns the values of some of the episodes."""
        return InDicts(
            [self.observations[row] for row in rows],
            [self.given_states[row] for row in rows],
            [self.actions[row] for row in rows],
        )

    def stacked(self, kind: Kind) -> Any:
        """Returns the observations of a kind's agents as rows ``[E, A, ...]``.

        Raises:
            NotInRows: they do not fit an array.
        """
        agents = kind.agents
        values = [seen[a] for seen in self.observations for a in agents]
        lead = (len(self.observations), len(agents))
        if kind.leaf is not None:
            num, (dtype, shape) = len(values), kind.leaf
            try:
                if [v.dtype for v in values].count(dtype) == num and [
                    v.shape for v in values
                ].count(shape) == num:  # joining takes a fraction of `np.array`'s time
                    return np.ndarray(lead + shape, dtype, b"".join(values))
            except (AttributeError, BufferError, TypeError):  # not arrays, or not contiguous
                pass
        return stack(kind.space, values, lead)

    def states(self, size: int) -> NDArray[np.float32]:
        """Returns the global states ``[E, size]``; raises as `stacked`."""
        try:
            array = np.array(self.given_states)
        except (ValueError, TypeError, RuntimeError):
            raise NotInRows from None
        if array.dtype.kind != "f" or array.shape[1:] != (size,):
            raise NotInRows
        return array.astype(np.float32, copy=False)

    def seen(self, row: int, part: Part) -> dict[str, Any]:
        """Returns the observations of a server's agents in one episode."""
        observations = self.observations[row]
        return {agent_id: observations[agent_id] for agent_id in part.agents}

    def state_of(self, row: int) -> Any:
        """Returns the global state of one episode."""
        return self.given_states[row]

    def store(self, kind: Kind, rows: Any) -> None:
        """Stores the actions ``[E, A, ...]`` of a kind's agents."""
        agents = kind.agents
        if type(kind.space) is Discrete:
            rows = rows.tolist()
        elif kind.leaf is None:
            places = range(len(agents))
            rows = [
                [row_of(kind.space, rows, (row, i)) for i in places]
                for row in range(len(self.actions))
            ]
        for actions, own in zip(self.actions, rows, strict=True):
            actions.update(zip(agents, own, strict=True))

    def store_of(self, row: int, agents: Sequence[str], reply: Actions) -> None:
        """Stores the actions of some agents in one episode.

        Raises:
            MalformedMessage: an action is missing.
        """
        if len(reply.actions) < len(agents):
            raise MalformedMessage(
                f"it has actions of {list(reply.actions)} only, not of all of {list(agents)}"
            )
        self.actions[row].update(reply.actions)


# --- in arrays ------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class InArrays:
    """The values of a step of the ``N`` copies of a simulation, in arrays; see `InDicts`.

    Not all copies need take part. A missing array, or one of another shape or type, raises
    `EpisodeMisuse`.

    Args:
        observations: by agent id ``[N, ...]``.
        state: float32 ``[N, state_size]``, for servers that read the global state.
        copies: the copies that take part.
        num_copies: N.
        actions: by agent id ``[N, ...]``: the last actions, which the answers replace.
        own: agents whose arrays in `actions` have no other holder, so that they may be overwritten.
    """

    _observations: Mapping[str, Rows]
    _state: Rows | None
    _copies: Index
    _num_copies: int
    _actions: dict[str, Rows]
    _own: set[str]
    _stacked: dict[int, list[Any]] = field(default_factory=dict)
    """By place of a server: the observations of its agents, as rows of each kind."""

    @classmethod
    def of_rows(
        cls,
        layout: Layout,
        observations: Sequence[Any],
        state: Rows | None,
        actions: Sequence[Any],
        num: int,
    ) -> InArrays:
        """Returns the values of `num` episodes given as rows; `actions` receives the answers."""
        chosen = _by_agent(layout.acted, actions)
        seen = _by_agent(layout.observed, observations)
        return cls(seen, state, slice(0, num), num, chosen, set(chosen))

    def of(self, rows: Sequence[int]) -> InArrays:
        return InArrays(
            self._observations,
            self._state,
            index_of([self._copy(row) for row in rows]),
            self._num_copies,
            self._actions,
            self._own,
        )

    @property
    def _is_whole(self) -> bool:
        copies = self._copies
        return isinstance(copies, slice) and copies.stop - copies.start == self._num_copies

    def _copy(self, row: int) -> int:
        copies = self._copies
        return copies.start + row if isinstance(copies, slice) else int(copies[row])

    def stacked(self, kind: Kind) -> Any:
        values = [self._observations.get(a) for a in kind.agents]
        return self._joined(kind.space, values, kind.agents)

    def states(self, size: int) -> NDArray[np.float32]:
        shape = self._num_copies, size
        if not isinstance(self._state, np.ndarray) or self._state.shape != shape:
            expected = as_text(shape, "float32")
            raise EpisodeMisuse(f"the state must be {expected}{got(self._state)}")
        return np.ascontiguousarray(self._state[self._copies], np.float32)

    def seen(self, row: int, part: Part) -> dict[str, Any]:
        if part.place not in self._stacked:
            self._stacked[part.place] = [self.stacked(kind) for kind in part.layout.observed]
        kinds = zip(part.layout.observed, self._stacked[part.place], strict=True)
        return {
            agent_id: row_of(kind.space, rows, (row, place))
            for kind, rows in kinds
            for place, agent_id in enumerate(kind.agents)
        }

    def state_of(self, row: int) -> Any:
        return None if self._state is None else self._state[self._copy(row)]

    def store(self, kind: Kind, rows: Any) -> None:
        is_whole = self._is_whole
        for place, agent_id in enumerate(kind.agents):
            mine = _column(kind, rows, place)
            if is_whole and agent_id not in self._own:
                self._actions[agent_id] = mine
            else:
                put(self._writable(agent_id), self._copies, mine)

    def store_of(self, row: int, agents: Sequence[str], reply: Actions) -> None:
        copy = self._copy(row)
        for agent_id in agents:
            try:
                put(self._writable(agent_id), copy, reply.actions[agent_id])
            except (KeyError, ValueError, TypeError) as error:
                raise MalformedMessage(
                    f"it has no valid action of agent {agent_id!r}: {error}"
                ) from None

    def _writable(self, agent_id: str) -> Rows:
        if agent_id not in self._own:
            self._own.add(agent_id)
            self._actions[agent_id] = each_array(np.copy, self._actions[agent_id])
        return self._actions[agent_id]

    def _joined(self, space: Space, values: Sequence[Rows], agents: Sequence[str]) -> Any:
        if isinstance(space, DictSpace):
            for agent_id, one in zip(agents, values, strict=True):
                if not isinstance(one, Mapping) or one.keys() != space.spaces.keys():
                    raise _mismatch(agent_id, f"a dict of {list(space.spaces)}", one)
            return {
                key: self._joined(sub, [one[key] for one in values], agents)
                for key, sub in space.spaces.items()
            }
        if isinstance(space, TupleSpace):
            for agent_id, one in zip(agents, values, strict=True):
                if not isinstance(one, tuple | list) or len(one) != len(space.spaces):
                    raise _mismatch(agent_id, f"a tuple of {len(space.spaces)} arrays", one)
            return [
                self._joined(sub, [one[i] for one in values], agents)
                for i, sub in enumerate(space.spaces)
            ]
        dtype, shape = leaf_type(space)
        whole, copies, is_whole = (self._num_copies, *shape), self._copies, self._is_whole
        num = copies.stop - copies.start if isinstance(copies, slice) else len(copies)
        joined = np.empty((num, len(agents), *shape), dtype)
        for place, (agent_id, one) in enumerate(zip(agents, values, strict=True)):
            mine = one if isinstance(one, np.ndarray) else np.asarray(one)
            if mine.shape != whole or (mine.dtype != dtype and not _widens(mine.dtype, dtype)):
                raise _mismatch(agent_id, as_text(whole, dtype.name), one)
            joined[:, place] = mine if is_whole else mine[copies]
        return joined


StepValues = InDicts | InArrays


def _widens(given: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    if given.kind == dtype.kind == "f":
        return True
    return given.kind in "iub" and np.can_cast(given, dtype)


def _by_agent(kinds: Sequence[Kind], rows: Sequence[Any]) -> dict[str, Rows]:
    return {
        agent_id: _column(kind, own, place)
        for kind, own in zip(kinds, rows, strict=True)
        for place, agent_id in enumerate(kind.agents)
    }


def _column(kind: Kind, rows: Any, place: int) -> Rows:
    """Returns the rows of one agent of a kind."""
    if kind.leaf is not None:
        return rows[:, place]
    return row_of(kind.space, rows, (slice(None), place))


def _mismatch(agent_id: str, expected: str, came: Any) -> EpisodeMisuse:
    return EpisodeMisuse(
        f"observations of agent {agent_id!r} in all copies must be {expected}{got(came)}"
    )


def as_text(shape: tuple[int, ...], dtype: str) -> str:
    """Returns the words for an expected array, in an error's text."""
    return f"an array of {dtype}, shape {shape}"


def got(value: Any) -> str:
    """Returns the words for the value that came instead."""
    if isinstance(value, np.ndarray):
        return f", got {value.dtype} of shape {value.shape}"
    return f", got {'none' if value is None else type(value).__name__}"
