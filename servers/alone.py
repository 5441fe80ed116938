"""An episode that is played without a server: what seats read, what they do and remember."""

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
    """What seats have read in a step."""

    block: Block
    newest: list[Any]
    """See `Frames.advance`."""

    def asked(self, part: int = 0) -> Asked:
        """Returns what the policy of a part is asked, greedily."""
        return Asked(self.block.served.parts[part].policy_id, [self.block], [part])


class Alone:
    """One episode.

    Args:
        agents: of the server, by id.
        seats: those that play, by id.
    """

    def __init__(self, agents: Mapping[str, AgentPlan], seats: Mapping[str, Seat]) -> None:
        self._agents = agents
        self._seats = Seats(agents, seats)

    def begin(self) -> None:
        """Forgets all."""
        self._seats.memory.begin(0)

    def look(
        self, observations: Mapping[str, Any], state: Any = None, seat: Seat | None = None
    ) -> Look:
        """Returns what seats read of a step; it changes nothing.

        Args:
            observations: of the agents that act, as their spaces say.
            state: the global state, None if there is none.
            seat: who alone reads, acting or not, be it another seat of an agent in its place; None:
                those that act.

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
        """Returns the recurrent states of a seat, ``[1, 1, ...]``; None: it has none."""
        memory = self._seats.memory
        place = memory.places_in_policy[seat.seat_id]
        states, _ = memory.states(seat.policy_id, _HERE, slice(place, place + 1))
        return states

    def act(self, acting: Acting, look: Look) -> dict[str, Any]:
        """Acts greedily, and continues to the next step; returns the actions by agent."""
        block, memory = look.block, self._seats.memory
        (chosen,) = acting.act([block])
        block.finish(*chosen)
        for one in block.served.parts:
            memory.began[_HERE, one.seat_places] = True
        keep(block, _HERE)
        if memory.frames is not None:
            memory.frames.advance(look.newest)
        return block.answer_of(0).actions
