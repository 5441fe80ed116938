"""A block: one checked step of some episodes, as arrays that are recorded, acted on and answered.

::

    Step, StepRows ──reading──> Block ──Acting.act──> Block.finish ──> Actions, ActionRows
                                  └── a link in the record of each of its episodes

The same agents act in all episodes of a block, in the same mode, so that it needs one array for
each policy. A step of a single episode is a block with one row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from muxrl.protocol.messages import ActionRows, Actions, StartEpisode
from muxrl.protocol.rows import Layout, actions_of, pick, put, rows_of
from muxrl.protocol.spaces import Discrete, MultiDiscrete
from muxrl.protocol.values import sample
from muxrl.servers.agents.log_probs import LOG_PROB
from muxrl.servers.agents.memory import Memory, Slots
from muxrl.servers.agents.parts import Logged, Part, Seen, places_of
from muxrl.servers.agents.seats import Seat

_MAX_LAYOUTS = 1_024
"""Most layouts to keep: agents that come and go make many."""


class ServedLayout:
    """The agents that act in a step, and the parts that read and act for them.

    Args:
        layout: the agents.
        parts: their seats.
    """

    def __init__(self, layout: Layout, parts: list[Part]) -> None:
        self.layout = layout
        self.parts = parts
        self.observed, self.acted = layout.observed, layout.acted
        self.agents = frozenset(layout.agents)
        self.seat_ids = frozenset(seat.seat_id for one in parts for seat in one.seats)
        """Ids of the seats that act."""
        self.places = places_of(layout.agents, layout)
        """Places of its agents among all agents of the server."""
        self.is_all = layout.agents == tuple(layout.spaces)

    def read_logged(self, given: Mapping[str, Any], log_probs: Mapping[str, float]) -> list[Logged]:
        """Returns by part the actions of one episode that were chosen elsewhere for some agents."""
        if len(given) == len(self.agents) and not log_probs:
            return self.read_logged_rows(rows_of(self.acted, given), None, None)
        # Agents without a given action get a valid one, since 0 may be none.
        rng = np.random.default_rng(0)
        some = {a: given[a] if a in given else sample(s.action_space, rng)
                for a, s in self.layout.spaces.items() if a in self.agents}  # fmt: skip
        rows = rows_of(self.acted, some)
        agents, known = self.layout.agents, None
        if log_probs:
            known = np.array([[log_probs.get(a, np.nan) for a in agents]])
        return self.read_logged_rows(rows, np.array([[a in given for a in agents]]), known)

    def read_logged_rows(
        self, rows: Sequence[Any], is_given: np.ndarray | None, log_probs: np.ndarray | None
    ) -> list[Logged]:
        """Returns by part the actions of several episodes; see `Part.read_logged`."""
        return [one.read_logged(rows, is_given, log_probs) for one in self.parts]


class Seats:
    """The seats of a server, or of one member of a pool: their memory, and their layouts.

    Args:
        agents: the server's agents, by id.
        seats: by seat id.
        num_slots: see `Memory`.
    """

    def __init__(
        self, agents: Mapping[str, Any], seats: Mapping[str, Seat], num_slots: int = 1
    ) -> None:
        self.seats = seats
        self.memory = Memory(list(agents), seats, num_slots)
        self.agents = agents
        self._known: dict[tuple[tuple[str, ...], frozenset[str]], ServedLayout] = {}
        self.everybody = self.layout(tuple(agents))

    def layout(
        self, agents: tuple[str, ...], untrained: frozenset[str] = frozenset()
    ) -> ServedLayout:
        """Returns the layout of some agents that act; seats in `untrained` act untrained."""
        key = agents, untrained
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MAX_LAYOUTS:
                self._known.clear()
            layout, acting = Layout(agents, self.agents), set(agents)
            of_parts: dict[Any, list[Seat]] = {}
            for seat_id, seat in self.seats.items():
                if not acting.isdisjoint(seat.members):
                    kind = seat.policy_id, seat.inputs, seat_id in untrained
                    of_parts.setdefault(kind, []).append(seat)
            parts = [
                Part(own, layout, self.memory, is_untrained=is_untrained)
                for (_, _, is_untrained), own in of_parts.items()
            ]
            found = self._known[key] = ServedLayout(layout, parts)
        return found

    def see(
        self,
        served: ServedLayout,
        observations: Mapping[str, Any],
        state: np.ndarray | None,
        slot: int,
        departed: np.ndarray,
        *,
        is_final: bool = False,
    ) -> Seen:
        """Returns one episode's step as `Seen`.

        Args:
            served: the agents that observe.
            observations: by agent, conforming to their spaces.
            state, departed, is_final: see `Seen`; the state is that of one episode.
            slot: of the episode.
        """
        rows = rows_of(served.observed, observations)
        states = None if state is None else np.asarray(state, np.float32)[None]
        where = slice(slot, slot + 1)
        return Seen(1, served.layout, rows, states, self.memory, where, departed, is_final=is_final)

    def layout_of(self, seat: Seat, agents: tuple[str, ...]) -> ServedLayout:
        """Returns a layout in which a single seat reads what some agents observe, acting or not."""
        layout = Layout(agents, self.agents)
        return ServedLayout(layout, [Part([seat], layout, self.memory)])


class Chosen(msgspec.Struct, frozen=True, gc=False):
    """A policy's choices for the rows of a part; all arrays are ``[E, S, ...]``."""

    actions: np.ndarray
    outputs: Mapping[str, Any]
    """By name: what is recorded with the actions, an array or a dict of arrays."""
    states: Any = None
    """Recurrent states after the actions, a dict of arrays; None: the policy has none."""


def shaped(columns: Any, rows: slice | None, lead: tuple[int, int]) -> Any:
    """Returns some rows ``[B, ...]`` as ``[E, S, ...]``, in a tree of arrays or None.

    Args:
        columns: the tree.
        rows: the rows to take; None: all.
        lead: E and S.
    """
    if isinstance(columns, np.ndarray):
        own = columns if rows is None else columns[rows]
        return own[None] if lead[0] == 1 else own.reshape(lead + own.shape[1:])
    if not columns:
        return columns
    return {key: shaped(part, rows, lead) for key, part in columns.items()}


class OpenEpisodes(Protocol):
    """The episodes that a block belongs to: see `muxrl.servers.episodes.table.EpisodeTable`."""

    started: list[StartEpisode | None]

    def act(self, block: Block) -> None: ...


class Mode(NamedTuple):
    """What must be equal for episodes to share a block."""

    seats: Seats
    is_training: bool = False
    should_explore: bool = False
    untrained: frozenset[str] = frozenset()
    """Ids of the seats that act with the weights that the server began with."""
    wants_log_probs: bool = False
    """Whether answers include the log-probabilities of actions."""


def part_of(index: Slots, where: slice) -> Slots:
    """Returns the part of an index at the positions `where`."""
    if isinstance(index, slice):
        return slice(index.start + where.start, index.start + where.stop)
    return index[where]


class Block(msgspec.Struct, eq=False):
    """One step of ``E`` episodes.

    Attributes:
        table: the table of these episodes; None: they are played without a server.
        mode: the mode of all of them.
        served: the agents that act.
        ids, slots, t: one for each episode.
        where: the slots as an index.
        observations: for each part, what its policy reads, ``[E, S, ...]``.
        rewards: for each part, ``[E, S]``: what followed from the last actions of its seats.
        players: the player of each episode; None: the server does not draw players.
        logged: for each part, actions that were chosen elsewhere; None: there are none.
        chosen: for each part, the policy's choices; None: the step waits for its actions.
        actions: the actions as the simulation takes them, rows of each kind of action space.
        weights_seq_no: version of the weights that chose the actions.
        has_failed: whether the actions could not be computed; clients may ask again, or never.
    """

    table: OpenEpisodes | None
    mode: Mode
    served: ServedLayout
    ids: Sequence[str]
    slots: list[int]
    where: Slots
    t: Sequence[int]
    observations: list[Any]
    logged: list[Logged] | None = None
    rewards: list[np.ndarray] = []
    chosen: Sequence[Chosen] | None = None
    weights_seq_no: int = 0
    has_failed: bool = False
    players: list[Any] | None = None
    actions: list[Any] = []

    def __len__(self) -> int:
        return len(self.slots)

    def finish(self, chosen: Sequence[Chosen], weights_seq_no: int) -> None:
        """Puts actions into effect.

        Args:
            chosen: for each part, the policy's choices.
            weights_seq_no: version of the weights that chose the actions.
        """
        # First everything that may raise: actions are whatever the user's module has returned.
        actions: list[Any] = [None] * len(self.served.acted)
        for one, own in zip(self.served.parts, chosen, strict=True):
            if one.writes_as_is is not None:
                actions[one.writes_as_is] = own.actions.astype(np.int64, copy=False)
            else:
                one.write(own.actions, actions)
        self.actions = actions
        self.weights_seq_no = weights_seq_no
        self.chosen = chosen
        if self.table is not None:
            self.table.act(self)

    def answer_of(self, row: int) -> Actions:
        """Returns the answer to one of its episodes."""
        actions = actions_of(self.served.layout, self.actions, row)
        answer = Actions(self.ids[row], int(self.t[row]), actions, self.weights_seq_no)
        if (log_probs := self.log_probs) is not None:
            known = zip(self.served.layout.agents, log_probs[row].tolist(), strict=True)
            answer.log_probs = {a: one for a, one in known if math.isfinite(one)}
        return answer

    @property
    def log_probs(self) -> np.ndarray | None:
        """The log-probabilities with which policies drew the actions, ``[E, A]``, NaN for unknown
        ones; None: they are not wanted, or all are unknown."""
        if not self.mode.wants_log_probs:
            return None
        agents, found = self.served.layout.agents, None
        for one, own in zip(self.served.parts, self.chosen or (), strict=True):
            # Real numbers are sent clipped, so that they have not the density of the drawn ones.
            if LOG_PROB in own.outputs and isinstance(one.action_space, Discrete | MultiDiscrete):
                if found is None:
                    found = np.full((len(self), len(agents)), np.nan)
                for i, seat_id in enumerate(one.seat_ids):
                    if seat_id in agents:  # neither a team nor absent
                        found[:, agents.index(seat_id)] = own.outputs[LOG_PROB][:, i]
        return found

    def seed_of(self, row: int) -> int | None:
        """Returns the seed for random choices in one of its episodes; None: it has none."""
        started = None if self.table is None else self.table.started[self.slots[row]]
        return started.seed if started is not None and self.ids[row] == started.episode_id else None

    def row_of(self, slot: int) -> int:
        """Returns the row of the episode in a slot."""
        where = self.where
        return slot - where.start if isinstance(where, slice) else self.slots.index(slot)

    def rows(self, where: slice) -> Block:
        """Returns some of its rows as a block; possible until it is recorded."""
        return msgspec.structs.replace(
            self,
            ids=self.ids[where],
            slots=self.slots[where],
            where=part_of(self.where, where),
            t=self.t[where],
            observations=[pick(one, where) for one in self.observations],
            players=self.players and self.players[where],
            logged=self.logged and [Logged(*pick(one, where)) for one in self.logged],
            rewards=[],
        )


class Awaited(msgspec.Struct, frozen=True, gc=False):
    """An answer that can be given once all its blocks have their actions."""

    blocks: Sequence[Block]
    answer: Callable[[], Actions | ActionRows]
    """Returns the answer; to be called when `is_ready`."""

    @property
    def is_ready(self) -> bool:
        """Whether all blocks have their actions."""
        return all(block.chosen is not None for block in self.blocks)


def answer_to_rows(blocks: Sequence[Block], places: Sequence[np.ndarray | slice]) -> ActionRows:
    """Returns the answer to a `StepRows`, whose rows may be in several blocks.

    Args:
        blocks: the blocks with the steps.
        places: for each block, the places of its rows in the message.
    """
    first = blocks[0]
    actions, known = first.actions, [block.log_probs for block in blocks]
    log_probs = known[0]
    if len(blocks) > 1:
        lead = sum(map(len, blocks))
        actions = [kind.empty(lead) for kind in first.served.acted]
        for block, where in zip(blocks, places, strict=True):
            put(actions, where, block.actions)
        if any(one is not None for one in known):
            log_probs = np.full((lead, len(first.served.layout.agents)), np.nan)
            for own, where in zip(known, places, strict=True):
                log_probs[where] = np.nan if own is None else own
    return ActionRows(actions=actions, weights_seq_no=first.weights_seq_no, log_probs=log_probs)
