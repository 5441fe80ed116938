"""Seats of agents whose trainer is one's own; beside the global state, if it learns with that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from muxrl.protocol.spaces import Box, DictSpace, Space
from muxrl.servers.agents.action_forms import ActionForm, action_form
from muxrl.servers.agents.keys import OBS, STATE
from muxrl.servers.agents.masks import observed_parts
from muxrl.servers.agents.observing import Observing
from muxrl.servers.agents.parts import Seen
from muxrl.servers.agents.seating import Seating
from muxrl.servers.agents.seats import Seat
from muxrl.servers.agents.solo_seats import SoloPart, SoloSeat
from muxrl.servers.config import AgentPlan, ServerPlan


@dataclass(frozen=True)
class TrainerSeating(Seating):
    """Every agent acts alone, in the simulation's own bounds, its mask apart.

    Attributes:
        reads_state: whether observations are recorded beside the global state.
    """

    follows_masks: bool = True
    reads_state: bool = False

    def action_form(self, agent: AgentPlan) -> ActionForm:
        return replace(action_form(agent.action_space), is_scaled=False)

    def make_seats(self, plan: ServerPlan, observing: Observing | None = None) -> dict[str, Seat]:
        """Returns a seat for each agent; without a state in the plan it only acts."""
        observing = observing or Observing.of(plan)
        seats: Mapping[str, Any] = super().make_seats(plan, observing)
        if not self.reads_state:
            return dict(seats)
        return {a: StateSeat(seats[a], plan.state_size, observing) for a in seats}


class StateSeat:
    """An agent whose observations are recorded beside the global state: a dict of ``obs``,
    ``state`` and perhaps ``action_mask``.

    Args:
        seat: the agent without it.
        size: of the state; None: there is none where nothing is learned.
        observing: how the state is read.
    """

    def __init__(self, seat: SoloSeat, size: int | None, observing: Observing) -> None:
        self._seat = seat
        self.read_state = None if size is None else observing.simulation_state_reader(size)
        self.size = size
        parts = observed_parts(seat.observation_space)
        if size is not None:
            parts[STATE] = Box((size,))
        self.observation_space: Space = DictSpace(parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._seat, name)

    @property
    def part_class(self) -> type[StatePart]:
        return StatePart


class StatePart(SoloPart):
    """Such agents of one policy."""

    seats: tuple[Any, ...]

    def observe(self, seen: Seen) -> Any:
        own = super().observe(seen)
        found = dict(own) if isinstance(own, dict) else {OBS: own}
        size, read = self.seats[0].size, self.seats[0].read_state
        if size is not None:
            states = np.zeros((seen.num_episodes, size), np.float32)
            if seen.state is not None:
                states = seen.state if read is None else read(seen.state)
            lead = seen.num_episodes, len(self.seats)
            found[STATE] = np.broadcast_to(states[:, None], (*lead, size))
        return found
