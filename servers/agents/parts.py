"""The seats of one policy that act together: from arrays of what agents observe, and back.

Of ``E`` episodes and ``S`` seats all arrays are ``[E, S, ...]``; one episode alone is ``E = 1``.
The same agents act in all of these episodes, so a part is made once for a lineup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from muxrl.protocol.rows import Kind, Lineup, compact, pick_columns, put
from muxrl.servers.agents.memory import Memory, Slots, grid
from muxrl.servers.agents.observing import Reader
from muxrl.servers.agents.seats import Seat


class Seen(msgspec.Struct):
    """What simulations show in one step of ``E`` episodes.

    Attributes:
        num_episodes: E.
        lineup: the agents that observe.
        observations: rows of each kind, in the order of `Lineup.observed`.
        state: the global state, float32 ``[E, state_size]``; None: none came.
        memory: of the seats.
        where: the episodes' slots in it.
        departed: bool ``[E, agents of the server]``, those that are done by now.
        back: agents that begin a new life: what they did in the one before is forgotten.
        anew: seats of which this begins a new life.
        is_final: whether seats see this at their end and do not act on it: no mask is needed there.
        newest: what was stacked of it, by index; see `Frames.advance`.
    """

    num_episodes: int
    lineup: Lineup
    observations: Sequence[Any]
    state: np.ndarray | None
    memory: Memory
    where: Slots
    departed: np.ndarray
    back: frozenset[str] = frozenset()
    anew: frozenset[str] = frozenset()
    is_final: bool = False
    newest: list[tuple[Any, np.ndarray]] = []

    def have_departed(self, columns: Any) -> np.ndarray:
        """Returns which of some agents are done, 0 or 1, float32 ``[E, n]``."""
        return self.departed[:, columns].astype(np.float32)

    def read(self, some: OfKind, reader: Reader) -> np.ndarray:
        """Returns what networks read of agents' observations, and of those before them.

        Args:
            some: the agents.
            reader: of all that a network reads of one; the same by whichever seat.
        """
        frames = reader(some.of(self.observations))
        return frames if self.memory.frames is None else self.stacked(some, frames)

    def stacked(self, some: OfKind, frames: np.ndarray) -> np.ndarray:
        """Returns what was read of agents' observations beside what they have read before."""
        stacks = self.memory.frames
        if stacks is None:
            return frames
        is_new = None
        if self.back and not self.is_final:
            is_new = np.array([agent_id in self.back for agent_id in some.agents])
        index = grid(self.where, some.places)
        found = stacks.stack(index, frames, is_new)
        if not self.is_final:
            self.newest.append((index, found))
        return found


class Part(Protocol):
    """Seats of one policy."""

    policy_id: str
    seats: tuple[Seat, ...]
    remembers_actions: bool
    """Whether it reads the last actions of its members."""
    writes_as_is: int | None
    """Number of the kind whose rows the policy's actions are; None: `write` makes them."""

    def observe(self, seen: Seen) -> Any:
        """Returns what the policy reads, an array ``[E, S, ...]`` or a dict of arrays.

        Raises:
            ValueMismatch: a mask allows nothing, or a team is incomplete.
        """

    def rewards(self, rewards: np.ndarray) -> np.ndarray:
        """Returns the recorded rewards ``[E, S]`` of those by agent of the server, ``[E, A]``."""

    def write(self, actions: np.ndarray, into: list[Any]) -> None:
        """Writes the policy's actions into the rows of each kind of action space."""

    def remember(self, actions: np.ndarray, memory: Memory, where: Slots) -> None:
        """Keeps what is read of the actions at the next step, if `remembers_actions`."""


class OfKind(NamedTuple):
    """Some agents of one kind, and where they are."""

    kind: int
    columns: slice | np.ndarray
    """In the rows of the kind."""
    agents: tuple[str, ...]
    places: slice | np.ndarray
    """Among all agents of the server."""
    is_whole: bool
    """Whether they are all of the kind, in its order."""
    of_kind: Kind

    def of(self, rows: Sequence[Any]) -> Any:
        """Returns the rows of these agents, ``[E, n, ...]``."""
        return rows[self.kind] if self.is_whole else pick_columns(rows[self.kind], self.columns)

    def write(self, own: Any, rows: list[Any]) -> None:
        """Writes the rows of these agents among those of their kind; None: there are none yet."""
        if rows[self.kind] is None:
            leaf = self.of_kind.leaf
            if self.is_whole and leaf is not None and own.dtype == leaf[0]:
                rows[self.kind] = own
                return
            rows[self.kind] = self.of_kind.empty(num_rows(own))
        put(rows[self.kind], (slice(None), self.columns), own)


def num_rows(rows: Any) -> int:
    """Returns how many episodes there are in rows."""
    while not isinstance(rows, np.ndarray):
        rows = next(iter(rows.values() if isinstance(rows, dict) else rows))
    return len(rows)


def places_of(agents: Sequence[str], lineup: Lineup) -> slice | np.ndarray:
    """Returns where agents are among all of the server."""
    place_of = {agent_id: i for i, agent_id in enumerate(lineup.spaces)}
    places = [place_of[agent_id] for agent_id in agents]
    return compact(np.array(places)) if places else slice(0)


def by_kind(
    names: Sequence[str], kinds: Sequence[Kind], lineup: Lineup
) -> list[tuple[OfKind, slice | np.ndarray]]:
    """Returns agents by kind, of those in the rows, and which of `names` each part has."""
    found = []
    for i, kind in enumerate(kinds):
        place_of = {agent_id: place for place, agent_id in enumerate(kind.agents)}
        where = [j for j, name in enumerate(names) if name in place_of]
        if where:
            columns = compact(np.array([place_of[names[j]] for j in where]))
            agents = tuple(names[j] for j in where)
            is_whole = agents == kind.agents
            some = OfKind(i, columns, agents, places_of(agents, lineup), is_whole, kind)
            found.append((some, compact(np.array(where))))
    return found


def make_parts(
    seats: Mapping[str, Seat], lineup: Lineup, untrained: frozenset[str] = frozenset()
) -> list[Part]:
    """Returns the parts of a lineup, in the order of the seats.

    Args:
        seats: of the server, by id.
        lineup: who acts.
        untrained: ids of the seats that act with the weights that the server began with.
    """
    acting = set(lineup.agents)
    found: dict[tuple[str, Any, bool], list[Any]] = {}
    for seat_id, seat in seats.items():
        if not acting.isdisjoint(seat.members):
            key = seat.policy_id, seat.part_class, seat_id in untrained
            found.setdefault(key, []).append(seat)
    return [part_class(own, lineup) for (_, part_class, _), own in found.items()]
