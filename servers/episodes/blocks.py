"""A step of some episodes that has been checked: recorded, acted on and answered as arrays.

::

    Step, StepRows ──reading──> Block ──Acting.act──> Block.finish ──> Actions, ActionRows
                                  └── a link in the record of each of its episodes

The same agents act in all of its episodes, in the same mode, so that it is one array for each
policy. A step of one episode is a block of one row.
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
"""That are remembered; agents that come and go make many."""


class ServedLayout:
    """The agents that act in a step, and who reads and acts for them.

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
        """Of those that act."""
        self.places = places_of(layout.agents, layout)
        """Of its agents among all of the server."""
        self.is_all = layout.agents == tuple(layout.spaces)

    def read_logged(self, given: Mapping[str, Any], log_probs: Mapping[str, float]) -> list[Logged]:
        """Returns actions of one episode that were chosen elsewhere, of some agents, by part."""
        if len(given) == len(self.agents) and not log_probs:
            return self.read_logged_rows(rows_of(self.acted, given), None, None)
        # Where none is given some action stands, since 0 need not be one.
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
        """Returns those of several; see `Part.read_logged`."""
        return [one.read_logged(rows, is_given, log_probs) for one in self.parts]


class Seats:
    """The seats of a server, or of one member of a pool: what they remember, and their layouts.

    Args:
        agents: the server's, by id.
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
        """Returns the layout of some agents."""
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
        """Returns what one episode shows in a step.

        Args:
            served: who observes.
            observations: theirs, which conform to their spaces.
            state, departed, is_final: see `Seen`; the state is that of one episode.
            slot: of the episode.
        """
        rows = rows_of(served.observed, observations)
        states = None if state is None else np.asarray(state, np.float32)[None]
        where = slice(slot, slot + 1)
        return Seen(1, served.layout, rows, states, self.memory, where, departed, is_final=is_final)

    def layout_of(self, seat: Seat, agents: tuple[str, ...]) -> ServedLayout:
        """Returns the layout of some agents, of which one seat reads, acting or not."""
        layout = Layout(agents, self.agents)
        return ServedLayout(layout, [Part([seat], layout, self.memory)])


class Chosen(msgspec.Struct, frozen=True, gc=False):
    """What a policy chose for the rows of a part; ``[E, S, ...]`` all of it."""

    actions: np.ndarray
    outputs: Mapping[str, Any]
    """What is recorded with them, by name: an array, or a dict of such."""
    states: Any = None
    """Recurrent state after them, a dict of arrays; None where the policy has none."""


def shaped(columns: Any, rows: slice | None, lead: tuple[int, int]) -> Any:
    """Returns some rows ``[B, ...]`` as ``[E, S, ...]``, of a tree of arrays or None.

    Args:
        columns: the tree.
        rows: which; None: all.
        lead: E and S.
    """
    if isinstance(columns, np.ndarray):
        own = columns if rows is None else columns[rows]
        return own[None] if lead[0] == 1 else own.reshape(lead + own.shape[1:])
    if not columns:
        return columns
    return {key: shaped(part, rows, lead) for key, part in columns.items()}


class OpenEpisodes(Protocol):
    """Whose episodes a block is of: see `muxrl.servers.episodes.table.EpisodeTable`."""

    started: list[StartEpisode | None]

    def act(self, block: Block) -> None: ...


class Mode(NamedTuple):
    """What is equal for episodes that can share a block."""

    seats: Seats
    is_training: bool = False
    should_explore: bool = False
    untrained: frozenset[str] = frozenset()
    """Ids of the seats that act with the weights that the server began with."""
    wants_log_probs: bool = False
    """Whether answers have those of the actions."""


def part_of(index: Slots, where: slice) -> Slots:
    """Returns some of the places that an index takes."""
    if isinstance(index, slice):
        return slice(index.start + where.start, index.start + where.stop)
    return index[where]


class Block(msgspec.Struct, eq=False):
    """A step of ``E`` episodes.

    Attributes:
        table: whose episodes they are; None: of no server.
        mode: of all of them.
        served: who acts.
        ids, slots, t: of each episode.
        where: the slots as an index.
        observations: of each part, what its policy reads, ``[E, S, ...]``.
        rewards: of each part, ``[E, S]``: what followed from its seats' last actions.
        players: who plays each episode, where a server draws; None: it does not.
        logged: of each part; None: no action was chosen elsewhere.
        chosen: of each part; None: it waits for its actions.
        actions: the same as the simulation's, rows of each kind of action space.
        weights_seq_no: version of the weights that chose them.
        has_failed: whether its actions could not be computed; its clients may ask again, or never.
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
            chosen: of each part.
            weights_seq_no: version of the weights that chose them.
        """
        # First all that may raise: an action is whatever the user's module gave.
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
        """Returns what one of its episodes is answered."""
        actions = actions_of(self.served.layout, self.actions, row)
        answer = Actions(self.ids[row], int(self.t[row]), actions, self.weights_seq_no)
        if (log_probs := self.log_probs) is not None:
            known = zip(self.served.layout.agents, log_probs[row].tolist(), strict=True)
            answer.log_probs = {a: one for a, one in known if math.isfinite(one)}
        return answer

    @property
    def log_probs(self) -> np.ndarray | None:
        """Those with which policies drew its actions, ``[E, A]``, NaN where one is not known; None:
        its episodes do not want them, or none is."""
        if not self.mode.wants_log_probs:
            return None
        agents, found = self.served.layout.agents, None
        for one, own in zip(self.served.parts, self.chosen or (), strict=True):
            # A real number is sent clipped: it has another density than what was drawn.
            if LOG_PROB in own.outputs and isinstance(one.action_space, Discrete | MultiDiscrete):
                if found is None:
                    found = np.full((len(self), len(agents)), np.nan)
                for i, seat_id in enumerate(one.seat_ids):
                    if seat_id in agents:  # not a team's, nor of one that is absent
                        found[:, agents.index(seat_id)] = own.outputs[LOG_PROB][:, i]
        return found

    def seed_of(self, row: int) -> int | None:
        """Returns the seed of what is drawn for one of its episodes; None: it has none."""
        started = None if self.table is None else self.table.started[self.slots[row]]
        return started.seed if started is not None and self.ids[row] == started.episode_id else None

    def row_of(self, slot: int) -> int:
        """Returns the row of an episode."""
        where = self.where
        return slot - where.start if isinstance(where, slice) else self.slots.index(slot)

    def rows(self, where: slice) -> Block:
        """Returns some of its rows as a block, while it is not recorded yet."""
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
    """What is answered as soon as its blocks have been acted on."""

    blocks: Sequence[Block]
    answer: Callable[[], Actions | ActionRows]
    """Returns the answer."""

    @property
    def is_ready(self) -> bool:
        """Whether all of them have been."""
        return all(block.chosen is not None for block in self.blocks)


def answer_to_rows(blocks: Sequence[Block], places: Sequence[np.ndarray | slice]) -> ActionRows:
    """Returns what a `StepRows` is answered.

    Args:
        blocks: with the steps.
        places: of each block's rows among all.
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
