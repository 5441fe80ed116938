"""Plays an episode without a server: what seats read, how they act, and what they remember."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from muxrl.servers.acting import Acting, Asked
from muxrl.servers.agents.memory import Slots
from muxrl.servers.agents.seats import Seat
from muxrl.servers.config import AgentPlan
from muxrl.servers.episodes.blocks import Block, Mode, Seats
from muxrl.servers.episodes.table import keep

_HERE: Slots = slice(0, 1)


class Look(NamedTuple):
    """What seats have read in one step."""

    block: Block
    newest: list[Any]
    """See `Frames.advance`."""

    def asked(self, part: int = 0) -> Asked:
        """Returns the request to the policy of a part, for greedy actions."""
        return Asked(self.block.served.parts[part].policy_id, [self.block], [part])


class Alone:
    """One episode without a server.

    Args:
        agents: the server's agents, by id.
        seats: the seats that play, by id.
    """

    def __init__(self, agents: Mapping[str, AgentPlan], seats: Mapping[str, Seat]) -> None:
        self._agents = agents
        self._seats = Seats(agents, seats)

    def begin(self) -> None:
        """Begins a new episode: forgets everything of the last one."""
        self._seats.memory.begin(0)

    def look(
        self, observations: Mapping[str, Any], state: Any = None, seat: Seat | None = None
    ) -> Look:
        """Returns what seats read in a step; changes nothing.

        Args:
            observations: by agent that acts, conforming to its space.
            state: the global state, None if there is none.
            seat: the only seat that reads, acting or not, maybe in place of an agent's own seat;
            None:
                the seats that act read.

        Raises:
            ValueMismatch: an action mask forbids every action.
        """
        agents = tuple(a for a in self._agents if a in observations)
        served = self._seats.layout_of(seat, agents) if seat else self._seats.layout(agents)
        none_departed = np.zeros((1, len(self._agents)), bool)
        seen = self._seats.see(served, observations, state, 0, none_departed)
        read = [one.observe(seen) for one in served.parts]
        block = Block(None, Mode(self._seats), served, [""], [0], _HERE, [0], read)
        return Look(block, seen.newest)

    def states(self, seat: Seat) -> Any:
        """Returns the recurrent states of a seat, ``[1, 1, ...]``; None: there are none."""
        memory = self._seats.memory
        place = memory.places_in_policy[seat.seat_id]
        states, _ = memory.states(seat.policy_id, _HERE, slice(place, place + 1))
        return states

    def act(self, acting: Acting, look: Look) -> dict[str, Any]:
        """Acts greedily, and goes on to the next step; returns the actions by agent."""
        block, memory = look.block, self._seats.memory
        (chosen,) = acting.act([block])
        block.finish(*chosen)
        for one in block.served.parts:
            memory.began[_HERE, one.seat_places] = True
        keep(block, _HERE)
        if memory.frames is not None:
            memory.frames.advance(look.newest)
        return block.answer_of(0).actions
