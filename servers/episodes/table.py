"""The open episodes of a server: an array for each field, with a row for each slot.

An episode has a slot while it is open: the lowest free one. If simulations begin their next
episodes in the order in which the last ones ended, each episode takes the slot of the one before
it. So the slots of all of them stay a slice, whatever other episodes have been open meanwhile.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import numpy as np

from muxrl.protocol.messages import StartEpisode
from muxrl.protocol.rows import grown, pick
from muxrl.servers.agents.memory import Slots
from muxrl.servers.episodes.blocks import Block, Seats
from muxrl.servers.episodes.record import Record

T = TypeVar("T")

_FIRST_SLOTS = 16


class Player(Protocol):
    """Acts in an episode, if the server draws one of several players."""

    name: str
    seats: Seats

    def end(self, returns: Mapping[str, float]) -> None:
        """Takes the returns by agent of a training episode that has ended."""


class EpisodeTable:
    """The open episodes of a server.

    Attributes:
        slot_of: by episode id, the slot.
        t: by slot, the number of observed steps, which is also the next step's `t`.
        seen_at: by slot, the time of the last message.
        returns: ``[slots, agents]``, sums of rewards so far.
        known: bool likewise, agents that have acted or have got a reward.
        done: bool likewise, agents that have ended and have not come back.
        num_done: by slot, the number of agents that are `done`.
        num_new: by slot, env steps that were recorded since the last cut.
        ts, seen_ats, nums_done, nums_new: the same numbers as arrays. Single elements are read and
            written much faster in the former; `return_at` is the same for `returns`.
        modes: by slot, what must be equal for episodes to share a block: seats, whether they
            train, whether they explore, and which seats act untrained.
        last: by slot, the newest block, which may wait for its actions.
        records: by slot, what was recorded; None: nothing is.
        started: by slot, the message that opened the episode.
        players: by slot, the player, if the server draws one.

    Args:
        agents: the server's agents, in order.
    """

    def __init__(self, agents: Sequence[str]) -> None:
        self.agents = tuple(agents)
        self.column = {agent_id: i for i, agent_id in enumerate(agents)}
        self.slot_of: dict[str, int] = {}
        self.ts, self.nums_done, self.nums_new = np.zeros((3, 0), np.int64)
        self.seen_ats, self.returns = np.zeros(0), np.zeros((0, len(agents)))
        self.known, self.done = np.zeros((2, 0, len(agents)), bool)
        self.modes: list[Any] = []
        self.last: list[Block | None] = []
        self.records: list[Record | None] = []
        self.started: list[StartEpisode | None] = []
        self.players: list[Player | None] = []
        self._seats: WeakSet[Seats] = WeakSet()
        """Seats whose memories grow with the table."""
        self._freed: list[int] = []
        """Free slots that were used before, as a heap."""
        self._num_used = 0
        """Slots from this number on were never used."""
        self._make_room(_FIRST_SLOTS)

    def __len__(self) -> int:
        return len(self.slot_of)

    def open(
        self, item: StartEpisode, mode: Any, record: Record | None, player: Any, now: float
    ) -> int:
        """Opens an episode; returns its slot."""
        if self._freed:
            slot = heapq.heappop(self._freed)
        else:
            slot = self._num_used
            self._num_used += 1
            if slot == len(self.last):
                self._make_room(2 * slot)
        seats: Seats = mode[0]
        if seats not in self._seats:
            self._seats.add(seats)
            if len(seats.memory.began) < len(self.last):
                seats.memory.grow(len(self.last))
        seats.memory.begin(slot)
        self.slot_of[item.episode_id] = slot
        self.started[slot], self.modes[slot], self.players[slot] = item, mode, player
        self.records[slot] = record
        if record is not None:
            record.slot = slot
        self.last[slot] = None
        self.t[slot] = self.num_new[slot] = self.num_done[slot] = 0
        self.seen_at[slot] = now
        self.returns[slot] = 0.0
        self.known[slot] = self.done[slot] = False
        return slot

    def close(self, episode_id: str) -> None:
        """Frees the slot of an episode."""
        slot = self.slot_of.pop(episode_id)
        self.started[slot] = self.modes[slot] = self.players[slot] = None
        self.records[slot] = self.last[slot] = None
        heapq.heappush(self._freed, slot)

    def _make_room(self, num: int) -> None:
        self.ts, self.seen_ats = grown(self.ts, num), grown(self.seen_ats, num)
        self.nums_done, self.nums_new = grown(self.nums_done, num), grown(self.nums_new, num)
        self.returns, self.known = grown(self.returns, num), grown(self.known, num)
        self.done = grown(self.done, num)
        self.t, self.seen_at = _elements(self.ts), _elements(self.seen_ats)
        self.num_done, self.num_new = _elements(self.nums_done), _elements(self.nums_new)
        self.return_at = _elements(self.returns)
        for column in (self.modes, self.last, self.records, self.started, self.players):
            column += [None] * (num - len(column))
        for seats in self._seats:
            seats.memory.grow(num)

    def returns_of(self, slot: int) -> dict[str, float]:
        """Returns the sum of rewards of each agent that has acted or has got a reward."""
        known = self.known[slot].tolist()
        returns = self.returns[slot].tolist()
        return {
            a: r for a, r, is_known in zip(self.agents, returns, known, strict=True) if is_known
        }

    def done_agents(self, slot: int) -> frozenset[str]:
        """Returns the agents that have ended and have not come back."""
        if not self.num_done[slot]:
            return frozenset()
        return frozenset(
            a for a, is_done in zip(self.agents, self.done[slot].tolist(), strict=True) if is_done
        )

    def of(self, column: list[T], slots: list[int], where: Slots) -> list[T]:
        """Returns the elements of a list by slot that belong to some episodes."""
        return column[where] if isinstance(where, slice) else [column[slot] for slot in slots]

    def is_waiting(self, slot: int) -> bool:
        """Whether the newest step of an episode still has no actions."""
        last = self.last[slot]
        return last is not None and last.chosen is None

    def act(self, block: Block) -> None:
        """Keeps what follows from the actions of a block, in its episodes that are still open."""
        where = block.where
        if len(block.slots) == 1:
            if self.last[block.slots[0]] is block:
                keep(block, where)
            return
        newest = self.of(self.last, block.slots, where)
        if newest.count(block) == len(newest):
            keep(block, where)
            return
        rows = np.flatnonzero([one is block for one in newest])
        if len(rows):  # some episodes were aborted while they waited
            keep(block, np.array(block.slots)[rows], rows)


def keep(block: Block, where: Slots, rows: np.ndarray | None = None) -> None:
    """Lets the seats of a block remember their states and actions.

    Args:
        block: a block with actions.
        where: the slots.
        rows: the rows of these slots in the block; None: all rows.
    """
    assert block.chosen is not None
    memory = block.mode.seats.memory
    for one, chosen in zip(block.served.parts, block.chosen, strict=True):
        if chosen.states is not None:
            states = chosen.states if rows is None else pick(chosen.states, rows)
            memory.put_states(one.policy_id, where, one.places_in_policy, states)
        if one.remembers_actions:
            actions = chosen.actions if rows is None else chosen.actions[rows]
            one.remember(actions, memory, where)


def _elements(array: Any) -> Any:
    return memoryview(array.reshape(-1))
