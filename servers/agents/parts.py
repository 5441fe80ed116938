"""Parts: the seats of one policy that act together, between arrays of the simulation and a policy.

For ``E`` episodes and ``S`` seats all arrays are ``[E, S, ...]``; a single episode has ``E = 1``.
The same agents act in all of these episodes, so that a part is made once for each layout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.rows import Kind, Layout, columns_by_kind, grid, index_of, pick_columns, put
from muxrl.protocol.spaces import Space
from muxrl.servers.agents.memory import Memory, Slots
from muxrl.servers.agents.observing import Reader
from muxrl.servers.agents.seats import Member, Seat


class Seen(msgspec.Struct):
    """What the simulations show in one step of ``E`` episodes.

    Attributes:
        num_episodes: E.
        layout: the agents that observe.
        observations: rows of each kind, in the order of `Layout.observed`.
        state: the global state, float32 ``[E, state_size]``; None: none was sent.
        memory: the memory of the seats.
        where: the slots of the episodes in the memory.
        departed: bool ``[E, agents of the server]``, the agents that are done by now.
        back: agents that begin a new life; their actions in the old one are forgotten.
        is_final: whether seats see this at their end and do not act on it, so that no mask is
            needed.
        newest: stacks that were read in this step, by index; see `Frames.advance`.
    """

    num_episodes: int
    layout: Layout
    observations: Sequence[Any]
    state: np.ndarray | None
    memory: Memory
    where: Slots
    departed: np.ndarray
    back: frozenset[str] = frozenset()
    is_final: bool = False
    newest: list[tuple[Any, np.ndarray]] = []

    def have_departed(self, columns: Any) -> np.ndarray:
        """Returns which of some agents are done, as 0 or 1, float32 ``[E, n]``."""
        return self.departed[:, columns].astype(np.float32)

    def read(self, some: OfKind, reader: Reader) -> np.ndarray:
        """Returns what networks read of some agents: their observations, with earlier ones stacked.

        Args:
            some: the agents.
            reader: reads everything of an observation that a network reads; the same for all seats.
        """
        frames, stacks = reader(some.of(self.observations)), self.memory.frames
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


class OfKind(NamedTuple):
    """Some agents of one kind of space, and where they are in rows."""

    kind: int
    columns: slice | np.ndarray
    """Columns of these agents in the rows of the kind."""
    agents: tuple[str, ...]
    places: slice | np.ndarray
    """Places of these agents among all agents of the server."""
    is_whole: bool
    """Whether these are all agents of the kind, in its order."""
    of_kind: Kind

    def of(self, rows: Sequence[Any]) -> Any:
        """Returns the rows of these agents, ``[E, n, ...]``."""
        return rows[self.kind] if self.is_whole else pick_columns(rows[self.kind], self.columns)

    def write(self, own: Any, rows: list[Any]) -> None:
        """Writes rows of these agents into those of their kind, which are made if None."""
        if rows[self.kind] is None:
            leaf = self.of_kind.leaf
            if self.is_whole and leaf is not None and own.dtype == leaf[0]:
                rows[self.kind] = own
                return
            rows[self.kind] = self.of_kind.empty(num_rows(own))
        put(rows[self.kind], (slice(None), self.columns), own)


def num_rows(rows: Any) -> int:
    """Returns the number of episodes in rows."""
    while not isinstance(rows, np.ndarray):
        rows = next(iter(rows.values() if isinstance(rows, dict) else rows))
    return len(rows)


def places_of(agents: Sequence[str], layout: Layout) -> slice | np.ndarray:
    """Returns the places of agents among all agents of the server."""
    place_of = {agent_id: i for i, agent_id in enumerate(layout.spaces)}
    return index_of([place_of[agent_id] for agent_id in agents])


def by_kind(
    names: Sequence[str | None], kinds: Sequence[Kind], layout: Layout
) -> list[tuple[OfKind, slice | np.ndarray]]:
    """Returns the agents that are in rows by kind, each with their positions in `names`.

    A name that is None stands for no agent.
    """
    found = []
    for i, columns, where in columns_by_kind(names, kinds):
        kind = kinds[i]
        agents = tuple(name for name in names if name in kind.agents)
        some = OfKind(i, columns, agents, places_of(agents, layout), agents == kind.agents, kind)
        found.append((some, where))
    return found


class Input(ABC):
    """Something that policies read, made for one part; algorithms declare theirs in a `Seating`.

    Attributes:
        key: of this input in an observation.

    Args:
        part: the part that reads it.
    """

    key: ClassVar[str]

    @abstractmethod
    def __init__(self, part: Part) -> None: ...

    @staticmethod
    @abstractmethod
    def space(seat: Seat) -> Space | None:
        """Returns the space of what a seat reads; None: the seat does not read this input."""

    @abstractmethod
    def read(self, seen: Seen, found: Mapping[str, Any]) -> np.ndarray:
        """Returns ``[E, S, ...]``.

        Args:
            seen: a step.
            found: by key, what the inputs before this one have read in the step.

        Raises:
            ValueMismatch: a mask allows nothing, or a team is incomplete.
        """


class Remembering(Input):
    """An input that reads the last actions of agents."""

    @abstractmethod
    def remember(self, actions: np.ndarray, memory: Memory, where: Slots) -> None:
        """Keeps actions ``[E, n, ...]`` to be read at the next step."""


_NOTHING: Mapping[str, Any] = {}


class Logged(NamedTuple):
    """Actions of the seats of a part that were chosen elsewhere."""

    actions: np.ndarray
    """In the form of the policy's own actions, ``[E, S, ...]``; arbitrary where none is given."""
    is_given: np.ndarray
    """Whether an action is given: bool ``[E, S]``, for teams ``[E, S, members]``."""
    log_probs: np.ndarray | None
    """The actions' log-probabilities, ``[E, S]``, NaN if unknown; None: all are unknown."""


class Part:
    """Seats of one policy that act together.

    Attributes:
        seats: the seats.
        agents: the agents of all seats, seat after seat: ``n``.
        names: ids of these agents.
        layout: the agents that act. Some members of a team may be absent, and so may agents that
            are seats by themselves.
        seat_places: places of the seats among all seats of the server.
        places_in_policy: places of the seats among the seats of their policy.
        is_untrained: whether the seats act with the weights that the server began with.
        is_here: bool ``[n]``, which of `agents` are in the layout.
        places: places of `agents` among all agents of the server.
        kinds: the agents that observe, by kind, with their positions in `agents`.
        writes_as_is: index of the kind whose rows are the policy's actions, unchanged; None:
            `write` converts them.
        remembers_actions: whether the policy reads the last actions of its agents.

    Args:
        seats: of the same policy, with the same inputs and spaces.
        layout: has some of their members, or none.
        memory: of the server's seats.
        is_untrained: see above.
    """

    def __init__(
        self, seats: Sequence[Seat], layout: Layout, memory: Memory, *, is_untrained: bool = False
    ) -> None:
        self.seats, self.layout, self.is_untrained = tuple(seats), layout, is_untrained
        first = seats[0]
        self.num_seats, self.action_space = len(seats), first.action_space
        self.seat_ids = ids = tuple(seat.seat_id for seat in seats)
        self.seat_places = index_of([memory.places[seat_id] for seat_id in ids])
        self.places_in_policy = index_of([memory.places_in_policy[seat_id] for seat_id in ids])
        self.policy_id, self.is_team = first.policy_id, first.is_team
        self.agents = [member for seat in seats for member in seat.agents]
        self.names = [member.agent_id for member in self.agents]
        self.is_here = np.array([name in layout.agents for name in self.names])
        self.places = places_of(self.names, layout)
        self.kinds = by_kind(self.names, layout.observed, layout)
        self._inputs = [
            (one.key, one(self)) for one in first.inputs if one.space(first) is not None
        ]
        self._only: Input | None = None
        if first.observation_space is first.own_space:
            ((_, self._only),) = self._inputs
        self._remembering = [one for _, one in self._inputs if isinstance(one, Remembering)]
        self.remembers_actions = bool(self._remembering)
        self._waits = self.is_team and not first.allows_late and not self.is_here.all()
        self._actions = first.actions
        self._acts = [
            (some, where, self.first_of(where).form)
            for some, where in by_kind(self.names, layout.acted, layout)
        ]
        self._acts_alike = self.are_all(self._acts)
        self.writes_as_is: int | None = None
        if self._acts_alike and first.actions.is_sent:
            some, _, form = self._acts[0]
            self.writes_as_is = some.kind if some.is_whole and form.is_plain else None
        self._reward = first.reward
        self._rewarded = self.places
        if self._reward != "own":
            self._rewarded = places_of([name for seat in seats for name in seat.members], layout)

    def first_of(self, where: slice | np.ndarray) -> Member:
        """Returns the first of some agents."""
        return self.agents[int(np.arange(len(self.agents))[where][0])]

    def are_all(self, kinds: Sequence[tuple[Any, ...]]) -> bool:
        """Whether the first of these kinds has all agents."""
        return [len(some.agents) for some, *_ in kinds] == [len(self.agents)]

    def by_seat(self, rows: np.ndarray) -> np.ndarray:
        """Returns rows ``[E, n, ...]`` as ``[E, S, ...]``; for teams ``[E, S, members, ...]``."""
        if not self.is_team:
            return rows
        if len(self.seats) == 1:
            return rows[:, None]
        return rows.reshape(len(rows), len(self.seats), -1, *rows.shape[2:])

    def by_agent(self, rows: np.ndarray) -> np.ndarray:
        """Undoes `by_seat`."""
        if not self.is_team:
            return rows
        if len(self.seats) == 1:
            return rows[:, 0]
        return rows.reshape(len(rows), -1, *rows.shape[3:])

    def observe(self, seen: Seen) -> Any:
        """Returns what the policy reads, an array ``[E, S, ...]`` or a dict of arrays.

        Raises:
            ValueMismatch: a mask allows nothing, or a team is incomplete.
        """
        if self._only is not None:
            return self._only.read(seen, _NOTHING)
        if self._waits and not seen.is_final:
            self._check_complete(seen)
        found: dict[str, np.ndarray] = {}
        for key, one in self._inputs:
            found[key] = one.read(seen, found)
        return found

    def _check_complete(self, seen: Seen) -> None:
        """Raises `ValueMismatch` if a team begins without a member that has not departed."""
        is_here = self.by_seat(self.is_here[None])[0]
        departed = self.by_seat(seen.departed[:, self.places])
        for i, seat in enumerate(self.seats):
            has_begun = seen.memory.began[seen.where, seen.memory.places[seat.seat_id]]
            waits_for = (~has_begun[:, None] & ~departed[:, i] & ~is_here[i]).any(axis=0)
            if waits_for.any():
                who = seat.members[int(np.argmax(waits_for))]
                here = [m for m in seat.members if m in self.layout.agents]
                raise ValueMismatch(
                    f"group {seat.seat_id!r} acts for the first time in this episode without "
                    f"its member {who!r}; where members take turns or join late, set "
                    "late_members: allow for the server",
                    agent_id=who,
                    expected=f"observations of {list(seat.members)}",
                    got=f"observations of {here}",
                )

    def rewards(self, rewards: np.ndarray) -> np.ndarray:
        """Returns the recorded rewards ``[E, S]`` from those by agent of the server ``[E, A]``."""
        own = rewards[:, self._rewarded]
        if self._reward == "own":
            return own
        num_members = len(self.seats[0].members)
        total = np.zeros(len(own) * len(self.seats))
        # In the order in which a single team's are added, so that sums are equal to the last bit.
        for column in own.reshape(-1, num_members).T:
            total += column
        if self._reward == "mean":
            total /= num_members
        return total.reshape(len(own), -1)

    def write(self, actions: np.ndarray, into: list[Any]) -> None:
        """Writes the policy's actions into the rows of each kind of action space."""
        actions = self.by_agent(actions)
        for some, where, form in self._acts:
            own = actions if self._acts_alike else actions[:, where]
            some.write(self._actions.write(form, own), into)

    def of_acting(self, rows: Sequence[Any]) -> np.ndarray:
        """Returns ``[E, n, ...]``, from rows of each kind of action space with equal shapes."""
        if self._acts_alike:
            return self._acts[0][0].of(rows)
        first = self._acts[0][0].of(rows)
        found = np.zeros((len(first), len(self.names), *first.shape[2:]), first.dtype)
        for some, where, _ in self._acts:
            found[:, where] = some.of(rows)
        return found

    def read_logged(
        self, rows: Sequence[Any], is_given: np.ndarray | None, log_probs: np.ndarray | None
    ) -> Logged:
        """Returns actions that were chosen elsewhere in the form of the policy's own actions.

        Args:
            rows: of each kind of action space; arbitrary where no action is given.
            is_given: bool ``[E, A]``, by agent of the layout; None: all are given.
            log_probs: likewise; see `Logged`.
        """
        read = [self._actions.read(form, some.of(rows)) for some, _, form in self._acts]
        lead = len(read[0]), len(self.names)
        actions, given, known = read[0], np.zeros(lead, bool), None
        if not self._acts_alike:
            actions = np.zeros((*lead, *read[0].shape[2:]), read[0].dtype)
        if log_probs is not None and self._actions.reads_log_probs:
            known = np.empty(lead)
        for own, (some, where, form) in zip(read, self._acts, strict=True):
            if not self._acts_alike:
                actions[:, where] = own
            places = some.of_kind.places[some.columns]
            given[:, where] = True if is_given is None else is_given[:, places]
            if known is not None and log_probs is not None:
                known[:, where] = log_probs[:, places] + form.log_scale
        return Logged(self.by_seat(actions), self.by_seat(given), known)

    def remember(self, actions: np.ndarray, memory: Memory, where: Slots) -> None:
        """Keeps the actions that are read at the next step; to be called if `remembers_actions`."""
        actions = self.by_agent(actions)
        for one in self._remembering:
            one.remember(actions, memory, where)
