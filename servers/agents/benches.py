"""Seats that are read and asked together: many episodes, all agents of a policy, one array.

A bench does for the rows of a `StepRows` what its seats do one by one for a `Step`: from the
simulation's observations to what the policy reads, and from its actions back. Of ``E`` episodes and
``S`` seats all arrays are ``[E, S, ...]``. The same agents act in all of these episodes, so a bench
is made once for a lineup.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from muxrl.protocol.rows import Kind, Lineup, compact, pick_columns, put
from muxrl.protocol.spaces import ACTION_MASK_KEY
from muxrl.servers.agents.frames import RowFrames
from muxrl.servers.agents.masks import ACTION_MASK, OBS
from muxrl.servers.agents.observing import Reader
from muxrl.servers.agents.seats import Seat, SoloSeat
from muxrl.servers.agents.spaces import without_mask


class Seen(NamedTuple):
    """What the simulations show in one step."""

    observations: Sequence[Any]
    """Rows of each kind of observation, in the order of `Lineup.observed`."""
    state: np.ndarray | None
    """The global state, float32 ``[E, state_size]``."""
    last_actions: np.ndarray | None
    """Of each agent of the lineup, float32 ``[E, A]``, -1 before the first; None: nobody asks."""
    departed: Callable[[], list[Collection[str]]]
    """Returns the agents that are done, of each episode."""
    frames: RowFrames | None = None
    """What was seen before; None: seats read the newest only."""

    @property
    def num_episodes(self) -> int:
        """E."""
        rows = self.observations[0]
        while not isinstance(rows, np.ndarray):
            rows = next(iter(rows.values() if isinstance(rows, dict) else rows))
        return len(rows)

    def have_departed(self, agents: Sequence[str]) -> np.ndarray:
        """Returns which of some agents are done, 0 or 1, float32 ``[E, n]``."""
        return np.array([[a in done for a in agents] for done in self.departed()], np.float32)

    def read(self, part: Part, reader: Reader, rows: Any) -> np.ndarray:
        """As `StepView.read`, of the rows of a part, ``[E, n, ...]``."""
        frames = reader(rows)
        return frames if self.frames is None else self.frames.stack(part.agents, frames)


class Bench(Protocol):
    """Seats of one policy."""

    policy_id: str
    seats: tuple[Seat, ...]
    reads_last_actions: bool

    def observe(self, seen: Seen) -> Any:
        """Returns what the policy reads, an array or a dict of arrays; None: a mask allows nothing.

        What is wrong with it, the seat that reads it alone says.
        """

    def rewards(self, rewards: np.ndarray) -> np.ndarray:
        """Returns the recorded rewards, float64 ``[E, S]``, of those by agent, ``[E, A]``."""

    def write(self, actions: np.ndarray, into: Sequence[Any]) -> None:
        """Writes the policy's actions into the rows of each kind of action space."""


class Part(NamedTuple):
    """Some agents of one kind, and where they are."""

    kind: int
    columns: slice | np.ndarray
    """Of these agents in the rows of the kind."""
    agents: tuple[str, ...]

    def of(self, rows: Sequence[Any]) -> Any:
        """Returns the rows of these agents, ``[E, n, ...]``."""
        return pick_columns(rows[self.kind], self.columns)

    def write(self, own: Any, rows: Sequence[Any]) -> None:
        """Writes the rows of these agents among those of their kind."""
        put(rows[self.kind], (slice(None), self.columns), own)


class SoloBench:
    """Agents alone, of one policy.

    Args:
        seats: of the same policy, with the same action space.
        lineup: they are in it. Of a kind that is recorded when it does not act some are, or none.
    """

    reads_last_actions = False

    def __init__(self, seats: Sequence[SoloSeat], lineup: Lineup) -> None:
        self.seats: tuple[Seat, ...] = tuple(seats)
        self.policy_id = seats[0].policy_id
        self._form = seats[0].form
        self._is_masked = seats[0].is_masked
        names = [seat.seat_id for seat in seats]
        self._here = [name for name in names if name in lineup.agents]
        self._places = compact(lineup.places_of(self._here)) if self._here else slice(0)
        self._acts = parts_of(names, lineup.acted)
        self._parts = [
            (part, where, seats[int(np.arange(len(seats))[where][0])].read)
            for part, where in parts_of(names, lineup.observed)
        ]

    def observe(self, seen: Seen) -> Any:
        found: Any = None
        for part, where, read in self._parts:
            rows = part.of(seen.observations)
            if self._is_masked:
                mask = self._form.read_masks(rows[ACTION_MASK_KEY])
                if not mask.any(axis=-1).all():
                    return None
                own = seen.read(part, read, without_mask(rows))
                one: Any = {OBS: own, ACTION_MASK: mask}
            else:
                one = seen.read(part, read, rows)
            if len(part.agents) == len(self.seats):
                return one
            found = _put(found, one, where, len(self.seats))
        return found

    def rewards(self, rewards: np.ndarray) -> np.ndarray:
        return rewards[:, self._places]

    def write(self, actions: np.ndarray, into: Sequence[Any]) -> None:
        for part, where in self._acts:
            part.write(self._form.write_rows(actions[:, where]), into)


def parts_of(names: Sequence[str], kinds: Sequence[Kind]) -> list[tuple[Part, slice | np.ndarray]]:
    """Returns where agents are in the rows of the kinds, and which of `names` each part has."""
    parts = []
    for i, kind in enumerate(kinds):
        place_of = {agent_id: place for place, agent_id in enumerate(kind.agents)}
        where = [j for j, name in enumerate(names) if name in place_of]
        if where:
            columns = np.array([place_of[names[j]] for j in where])
            agents = tuple(names[j] for j in where)
            parts.append((Part(i, compact(columns), agents), compact(np.array(where))))
    return parts


def _put(into: Any, rows: Any, where: slice | np.ndarray, num: int) -> Any:
    """Puts the rows of some seats among those of all, which are made with the first, of zeros."""
    if isinstance(rows, dict):
        return {
            key: _put(None if into is None else into[key], part, where, num)
            for key, part in rows.items()
        }
    if into is None:
        into = np.zeros((len(rows), num, *rows.shape[2:]), rows.dtype)
    into[:, where] = rows
    return into


def make_benches(seats: Mapping[str, Seat], lineup: Lineup) -> list[Bench] | None:
    """Returns the benches of a lineup, in the order of the seats; None: they are read one by one.

    That is so for seats of classes without a bench.
    """
    acting = set(lineup.agents)
    found: dict[tuple[str, Any], list[Any]] = {}
    for seat in seats.values():
        if acting.isdisjoint(seat.members):
            continue
        bench = bench_class(seat)
        if bench is None:
            return None
        found.setdefault((seat.policy_id, bench), []).append(seat)
    if len(found) > len({policy_id for policy_id, _ in found}):
        return None  # one policy, but rows of two shapes
    return [bench(own, lineup) for (_, bench), own in found.items()]


def bench_class(seat: Seat) -> Callable[[Sequence[Any], Lineup], Bench] | None:
    """Returns what reads seats of this kind together, None if nothing does."""
    if type(seat) is SoloSeat:
        return SoloBench if seat.form.has_rows else None
    return getattr(seat, "bench_class", None)
