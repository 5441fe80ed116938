"""The memory of a server's seats in open episodes: arrays with a row for each slot.

Each open episode has a slot; so has an episode that is played without a server. A new episode
begins with an empty memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from muxrl.protocol.rows import each_array, grid, grown, put
from muxrl.servers.agents.frames import Frames
from muxrl.servers.agents.keys import NO_ACTION
from muxrl.servers.agents.seats import Seat

Slots = slice | np.ndarray
"""Slots of some episodes: a slice if they are consecutive, since it makes a view."""
Columns = slice | np.ndarray


class Memory:
    """What seats remember, by slot.

    Attributes:
        began: bool ``[slots, seats]``, whether a seat has observed in its current life.
        pending: ``[slots, seats]``, rewards that a seat got since its last action, until it
            observes again.
        discounted: ``[slots, seats]``, discounted sums of rewards, for their scale.
        last_actions: float32 ``[slots, agents]``, the last action of each member of a team, in the
            form of its network; -1 before the first one.
        frames: what agents have read last; None: frames are not stacked.

    Args:
        agents: the server's agents, in order.
        seats: by seat id.
        num_slots: number of slots to begin with.
    """

    def __init__(
        self, agents: Sequence[str], seats: Mapping[str, Seat], num_slots: int = 1
    ) -> None:
        self.places = {seat_id: i for i, seat_id in enumerate(seats)}
        """By seat id: the place among all seats."""
        self.places_in_policy: dict[str, int] = {}
        self._num_seats: dict[str, int] = {}
        """By policy: the number of its seats."""
        for seat_id, seat in seats.items():
            place = self._num_seats.get(seat.policy_id, 0)
            self.places_in_policy[seat_id], self._num_seats[seat.policy_id] = place, place + 1
        num_seats, num_agents = len(seats), len(agents)
        self.began = np.zeros((num_slots, num_seats), bool)
        self.pending = np.zeros((num_slots, num_seats))
        self.discounted = np.zeros((num_slots, num_seats))
        self.last_actions = np.full((num_slots, num_agents), NO_ACTION, np.float32)
        self._states: dict[str, Any] = {}
        """By policy: trees of ``[slots, seats of the policy, ...]``, made with the first state."""
        self._has_state: dict[str, np.ndarray] = {}
        frame_stack = next((seat.frame_stack for seat in seats.values()), 1)
        self.frames = Frames(frame_stack, num_slots, num_agents) if frame_stack > 1 else None

    def grow(self, num_slots: int) -> None:
        """Makes room for more slots."""
        self.began, self.pending = grown(self.began, num_slots), grown(self.pending, num_slots)
        self.discounted = grown(self.discounted, num_slots)
        self.last_actions = grown(self.last_actions, num_slots)
        self._states = grown(self._states, num_slots)
        self._has_state = grown(self._has_state, num_slots)
        if self.frames is not None:
            self.frames.grow(num_slots)

    def begin(self, slot: int) -> None:
        """Forgets everything in a slot."""
        self.began[slot] = False
        self.pending[slot] = self.discounted[slot] = 0.0
        self.last_actions[slot] = NO_ACTION
        for has in self._has_state.values():
            has[slot] = False
        if self.frames is not None:
            self.frames.forget(slot)

    def begin_again(self, slot: int, seat: Seat) -> None:
        """Forgets a seat's former life; `last_actions` is reset elsewhere."""
        place = self.places[seat.seat_id]
        self.began[slot, place] = False
        self.pending[slot, place] = self.discounted[slot, place] = 0.0
        if seat.policy_id in self._has_state:
            self._has_state[seat.policy_id][slot, self.places_in_policy[seat.seat_id]] = False

    def states(self, policy_id: str, where: Slots, columns: Columns) -> tuple[Any, np.ndarray]:
        """Returns recurrent states of some seats of a policy.

        Returns:
            A tree of arrays ``[E, S, ...]``, None if there are no states; and which seats have one,
            bool ``[E, S]``.
        """
        has = self._has_state.get(policy_id) if self._has_state else None
        if has is None:
            return None, _NO_SEATS
        index = grid(where, columns)
        have = has[index]
        if not have.any():
            return None, have
        # Copied, since a policy may return what it was given, and that is recorded.
        return each_array(lambda one: np.array(one[index]), self._states[policy_id]), have

    def put_states(self, policy_id: str, where: Slots, columns: Columns, states: Any) -> None:
        """Keeps recurrent states ``[E, S, ...]``, as they are after the actions of some seats."""
        if policy_id not in self._states:
            lead = len(self.began), self._num_seats[policy_id]
            self._has_state[policy_id] = np.zeros(lead, bool)
            self._states[policy_id] = each_array(
                lambda one: (
                    np.zeros((*lead, *one.shape[2:]), one.dtype)
                    if one.dtype != object
                    else np.full(lead, None, object)
                ),
                states,
            )
        index = grid(where, columns)
        put(self._states[policy_id], index, states)
        self._has_state[policy_id][index] = True


_NO_SEATS = np.zeros((0, 0), bool)
