"""Steps of many episodes as rows of arrays, in an order that client and server share.

The agents of a `StepRows` are grouped by their spaces: agents with equal observation spaces are one
kind, and kinds come in the order in which their first agent is named; likewise for actions. Values
of ``E`` episodes and the ``A`` agents of a kind are an array ``[E, A, ...]``:

==========================  =====================================================
space                       array
==========================  =====================================================
Box                         ``[E, A, *shape]`` of its dtype
Discrete                    ``[E, A]`` int64
MultiDiscrete, MultiBinary  ``[E, A, n]`` int64
Dict                        dict of its parts
Tuple                       list of its parts
==========================  =====================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxrl.protocol.message_sizes import AgentSpaces
from muxrl.protocol.messages import ActionRows, Actions, Refused, Step, StepRows
from muxrl.protocol.spaces import (
    Box,
    DictSpace,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    TupleSpace,
    leaf_type,
    parts_of,
)
from muxrl.protocol.values import within

Index = slice | NDArray[np.int64]
"""Indexes an array: a slice gives a view, an array gives a copy."""
_MAX_LAYOUTS = 256
"""Most layouts to remember; agents that come and go make many."""


class NotInRows(ValueError):
    """Values cannot become rows: one is a list, has another shape or dtype, or lacks a key."""


@dataclass(frozen=True)
class Kind:
    """Agents with equal spaces.

    Attributes:
        space: their space.
        agents: their ids, in the order of the rows.
        places: their places among the agents of the layout.
    """

    space: Space
    agents: tuple[str, ...]
    places: np.ndarray

    @cached_property
    def leaf(self) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
        """Dtype and shape of a value; None if the space has sub-spaces."""
        return leaf_type(self.space) if parts_of(self.space) is None else None

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the arrays that make up a value, in the order of `leaves`."""
        return [array.shape for array in leaves(self.space, empty(self.space, ()))]

    def empty(self, lead: int) -> Any:
        """Returns uninitialised rows for `lead` episodes."""
        if self.leaf is None:
            return empty(self.space, (lead, len(self.agents)))
        dtype, shape = self.leaf
        return np.empty((lead, len(self.agents), *shape), dtype)


@dataclass(frozen=True)
class Layout:
    """The agents that act in each of several steps, grouped into kinds.

    Args:
        agents: ids, in the order in which a message names them.
        spaces: by id of each of the server's agents; an unknown agent raises `KeyError`.
    """

    agents: tuple[str, ...]
    spaces: Mapping[str, AgentSpaces]

    @cached_property
    def observed(self) -> tuple[Kind, ...]:
        """Kinds of observations."""
        return _kinds([(a, self.spaces[a].observation_space) for a in self.agents])

    @cached_property
    def acted(self) -> tuple[Kind, ...]:
        """Kinds of actions."""
        return _kinds([(a, self.spaces[a].action_space) for a in self.agents])

    def places_of(self, agents: Sequence[str]) -> np.ndarray:
        """Returns the places of some of the agents, int64."""
        place_of = {agent_id: place for place, agent_id in enumerate(self.agents)}
        return np.array([place_of[agent_id] for agent_id in agents])


def layouts(spaces: Mapping[str, AgentSpaces]) -> Callable[[tuple[str, ...]], Layout]:
    """Returns what makes the layouts of some agents; those that it made last are remembered."""
    return lru_cache(_MAX_LAYOUTS)(partial(Layout, spaces=spaces))


def _kinds(of_agents: Sequence[tuple[str, Space]]) -> tuple[Kind, ...]:
    found: list[tuple[Space, list[int]]] = []
    for place, (_, space) in enumerate(of_agents):
        places = next((places for known, places in found if known == space), None)
        if places is None:
            found.append((space, [place]))
        else:
            places.append(place)
    return tuple(
        Kind(space, tuple(of_agents[i][0] for i in places), np.array(places))
        for space, places in found
    )


def stack(space: Space, values: Sequence[Any], lead: tuple[int, ...]) -> Any:
    """Returns values of a space as rows.

    Args:
        space: of each value.
        values: as the simulation gives them.
        lead: the first dimensions of the rows, whose product is the number of values.

    Raises:
        NotInRows: a value does not fit the space; reading values one by one tells whose.
    """
    if isinstance(space, DictSpace):
        if any(type(v) is not dict or v.keys() != space.spaces.keys() for v in values):
            raise NotInRows
        return {k: stack(sub, [v[k] for v in values], lead) for k, sub in space.spaces.items()}
    if isinstance(space, TupleSpace):
        if any(type(v) is not tuple or len(v) != len(space.spaces) for v in values):
            raise NotInRows
        return [stack(sub, [v[i] for v in values], lead) for i, sub in enumerate(space.spaces)]
    try:
        rows = np.array(values)
    except (ValueError, TypeError, RuntimeError):  # ragged, or a tensor on a GPU
        raise NotInRows from None
    dtype, shape = leaf_type(space)
    if rows.shape[1:] != shape:
        raise NotInRows
    if rows.dtype != dtype:
        widens = rows.dtype.kind in "iu" and dtype.kind == "i" and np.can_cast(rows.dtype, dtype)
        if not widens and not rows.dtype.kind == dtype.kind == "f":
            raise NotInRows
        rows = rows.astype(dtype)
    return rows.reshape(lead + shape)


def are_rows(kind: Kind, rows: Any, lead: int, most: float) -> bool:
    """Whether all rows conform to a kind's space; compares whole arrays.

    Args:
        kind: the agents of the rows.
        rows: any value.
        lead: the expected number of episodes.
        most: largest absolute value of a number.
    """
    num = len(kind.agents)
    if kind.leaf is not None:
        return _are_leaves(kind.space, *kind.leaf, rows, (lead, num), most)
    return _are_rows(kind.space, rows, (lead, num), most)


def _are_rows(space: Space, rows: Any, lead: tuple[int, int], most: float) -> bool:
    if parts_of(space) is None:
        return _are_leaves(space, *leaf_type(space), rows, lead, most)
    parts = _parts(space, rows)
    return parts is not None and all(_are_rows(s, r, lead, most) for s, r in parts)


def _are_leaves(
    space: Space,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    rows: Any,
    lead: tuple[int, int],
    most: float,
) -> bool:
    if type(rows) is not np.ndarray or rows.dtype != dtype or rows.shape != lead + shape:
        return False
    if isinstance(space, Box):
        return within(rows, most)
    if isinstance(space, Discrete):
        first, num = space.start, space.n
        return bool(rows.size == 0 or (rows.min() >= first and rows.max() < first + num))
    assert isinstance(space, MultiDiscrete | MultiBinary)
    nvec = 2 if isinstance(space, MultiBinary) else np.asarray(space.nvec)
    return bool(((rows >= 0) & (rows < nvec)).all())


def are_floats(rows: Any, shape: tuple[int, ...], most: float, dtype: type) -> bool:
    """Whether a value is an array of this shape and dtype, with absolute values up to `most`."""
    return (
        type(rows) is np.ndarray
        and rows.dtype == dtype
        and rows.shape == shape
        and within(rows, most)
    )


def row_of(space: Space, rows: Any, index: tuple[int | slice, ...]) -> Any:
    """Returns what is there in rows of a space; one value in the form in which a `Step` has it."""
    if isinstance(space, DictSpace):
        return {key: row_of(sub, rows[key], index) for key, sub in space.spaces.items()}
    if isinstance(space, TupleSpace):
        return tuple(row_of(s, part, index) for s, part in zip(space.spaces, rows, strict=True))
    found = rows[(*index, ...)]
    # A value with too many dimensions stays an array, to be refused as such.
    return found.item() if isinstance(space, Discrete) and found.ndim == 0 else found


def singles(layout: Layout, item: StepRows) -> list[Step]:
    """Returns the rows of an item as a `Step` for each episode."""
    steps = []
    for row, (episode_id, t) in enumerate(zip(item.episode_ids, item.t.tolist(), strict=True)):
        observations = {}
        for kind, rows in zip(layout.observed, item.observations, strict=True):
            for i, agent_id in enumerate(kind.agents):
                observations[agent_id] = row_of(kind.space, rows, (row, i))
        step = Step(episode_id, t, {a: observations[a] for a in layout.agents})
        if item.rewards is not None and (t or item.rewards[row].any()):
            step.rewards = dict(zip(layout.agents, item.rewards[row].tolist(), strict=True))
        if item.state is not None:
            step.state = item.state[row]
        if item.logged_actions is not None:
            step.logged_actions = actions_of(layout, item.logged_actions, row)
        if item.logged_log_probs is not None:
            known = zip(layout.agents, item.logged_log_probs[row].tolist(), strict=True)
            step.logged_log_probs = {a: one for a, one in known if not math.isnan(one)}
        steps.append(step)
    return steps


def rows_of(kinds: Sequence[Kind], values: Mapping[str, Any]) -> list[Any]:
    """Returns the conforming values of one episode, given by agent, as rows of each kind."""
    found = []
    for kind in kinds:
        own, leaf = [values[a] for a in kind.agents], kind.leaf
        lead = 1, len(own)
        if leaf is None:
            found.append(stack(kind.space, own, lead))
            continue
        if not leaf[1]:
            rows = np.array(own, leaf[0])
        else:  # arrays of the space's dtype
            rows = own[0].copy() if len(own) == 1 else np.concatenate(own)
        found.append(rows.reshape(lead + leaf[1]))
    return found


def answers_of(layout: Layout, item: StepRows, reply: ActionRows) -> list[Actions | Refused]:
    """Returns a reply to an item as an answer to each of its steps."""
    known: list[Any] = [()] * len(item.t) if reply.log_probs is None else reply.log_probs.tolist()
    log_probs = (zip(layout.agents, row, strict=False) for row in known)  # () if there are none
    return reply.replies or [
        Actions(
            episode_id,
            t,
            actions_of(layout, reply.actions, row),
            reply.weights_seq_no,
            {agent_id: one for agent_id, one in own if not math.isnan(one)},
        )
        for row, (episode_id, t, own) in enumerate(
            zip(item.episode_ids, item.t.tolist(), log_probs, strict=True)
        )
    ]


def actions_of(layout: Layout, rows: Sequence[Any], row: int) -> dict[str, Any]:
    """Returns the actions of one episode by agent, out of rows of each kind."""
    actions: dict[str, Any] = {}
    for kind, own in zip(layout.acted, rows, strict=True):
        if type(kind.space) is Discrete:
            actions.update(zip(kind.agents, own[row].tolist(), strict=True))
        else:
            for place, agent_id in enumerate(kind.agents):
                actions[agent_id] = row_of(kind.space, own, (row, place))
    return actions


def empty(space: Space, lead: tuple[int, ...]) -> Any:
    """Returns uninitialised rows of a space."""
    if isinstance(space, DictSpace):
        return {key: empty(sub, lead) for key, sub in space.spaces.items()}
    if isinstance(space, TupleSpace):
        return [empty(sub, lead) for sub in space.spaces]
    dtype, shape = leaf_type(space)
    return np.empty(lead + shape, dtype)


def leaves(space: Space, rows: Any) -> list[Any]:
    """Returns the arrays that make up rows of a space; None in place of rows with wrong parts."""
    if parts_of(space) is None:
        return [rows]
    parts = _parts(space, rows)
    return [None] if parts is None else [leaf for s, r in parts for leaf in leaves(s, r)]


def _parts(space: Space, rows: Any) -> list[tuple[Space, Any]] | None:
    """Returns the sub-spaces of a Dict or Tuple, each with its rows; None if the parts differ."""
    if isinstance(space, DictSpace):
        if not isinstance(rows, dict) or rows.keys() != space.spaces.keys():
            return None
        return [(sub, rows[key]) for key, sub in space.spaces.items()]
    assert isinstance(space, TupleSpace)
    if not isinstance(rows, list) or len(rows) != len(space.spaces):
        return None
    return list(zip(space.spaces, rows, strict=True))


def columns_by_kind(
    names: Sequence[str | None], kinds: Sequence[Kind]
) -> Iterator[tuple[int, Index, Index]]:
    """Yields where agents are among the kinds, for each kind that has any of them.

    Each item is the index of the kind, the columns of its agents in the kind's rows, and the places
    of these agents in `names`.

    Args:
        names: agents; None is skipped.
        kinds: of a layout.
    """
    for number, kind in enumerate(kinds):
        column_of = {agent_id: column for column, agent_id in enumerate(kind.agents)}
        columns = [column_of[name] for name in names if name in column_of]
        if columns:
            which = [i for i, name in enumerate(names) if name in column_of]
            yield number, index_of(columns), index_of(which)


def index_of(places: Sequence[int]) -> Index:
    """Returns the index of these places in an array: a slice, if they are consecutive."""
    first = places[0] if places else 0
    if len(places) == 1:
        return slice(first, first + 1)
    if places == list(range(first, first + len(places))) or isinstance(places, range):
        return slice(first, first + len(places))
    return np.array(places, np.int64)


def grid(rows: Index, columns: Index) -> Any:
    """Returns the index of the block of these rows and columns."""
    if isinstance(rows, slice) or isinstance(columns, slice):
        return rows, columns
    return rows[:, None], columns


def pick_columns(rows: Any, columns: slice | np.ndarray) -> Any:
    """Returns some agents' columns of the rows of a kind."""
    return pick(rows, (slice(None), columns))


def pick(rows: Any, index: Any) -> Any:
    """Returns ``rows[index]`` of each array; None stays None."""
    if type(rows) is np.ndarray:  # nearly always
        return rows[index]
    return each_array(lambda array: array[index], rows)


def each_array(make: Callable[[Any], Any], rows: Any) -> Any:
    """Applies `make` to each array within dicts, lists and tuples; None stays None.

    Any other value counts as an array.
    """
    if isinstance(rows, np.ndarray):
        return make(rows)
    if type(rows) is dict or isinstance(rows, Mapping):
        return {key: each_array(make, part) for key, part in rows.items()}
    if isinstance(rows, list | tuple):
        parts = [each_array(make, part) for part in rows]
        return parts if isinstance(rows, list) else tuple(parts)
    return None if rows is None else make(rows)


def put(into: Any, index: Any, rows: Any) -> None:
    """Assigns rows to ``into[index]``, in each array."""
    if isinstance(into, dict):
        for key, part in into.items():
            put(part, index, rows[key])
    elif isinstance(into, list | tuple):
        for part, own in zip(into, rows, strict=True):
            put(part, index, own)
    else:
        into[index] = rows


def grown(rows: Any, num: int) -> Any:
    """Returns arrays extended by rows of 0, up to `num` rows."""
    return each_array(
        lambda one: np.concatenate([one, np.zeros((num - len(one), *one.shape[1:]), one.dtype)]),
        rows,
    )
