"""What policies can read in a step: a class for each input. Algorithms say which ones they use.

A team's input has a row for every member, padded with zeros to the largest. A member that has
departed or does not act at this step is *absent*: its row is zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.rows import grid, index_of
from muxrl.protocol.spaces import Box, Space
from muxrl.servers.agents.keys import (
    ACTION_MASK,
    AGENT_ID,
    ALIVE,
    LAST_ACTION,
    NO_ACTION,
    OBS,
    STATE,
)
from muxrl.servers.agents.masks import NONE_AVAILABLE, none_available
from muxrl.servers.agents.memory import Memory, Slots
from muxrl.servers.agents.observing import Reader
from muxrl.servers.agents.parts import Input, OfKind, Part, Remembering, Seen, by_kind, places_of
from muxrl.servers.agents.seats import Member, Seat
from muxrl.servers.agents.spaces import flat_size


class Own(Input):
    """The agents' own observations."""

    key = OBS

    def __init__(self, part: Part) -> None:
        self._part = part
        space = part.seats[0].own_space
        assert isinstance(space, Box)
        self._shape = space.shape[1:] if part.is_team else space.shape
        self._kinds = [(some, where, part.first_of(where).read) for some, where in part.kinds]
        self._alike: tuple[OfKind, Reader] | None = None
        """All agents with their reader, if they observe alike."""
        if part.are_all(self._kinds):
            self._alike = self._kinds[0][0], self._kinds[0][2]

    @staticmethod
    def space(seat: Seat) -> Space:
        return seat.own_space

    def read(self, seen: Seen, found: Mapping[str, Any]) -> np.ndarray:
        part = self._part
        if self._alike is not None:
            own = seen.read(*self._alike)
            return part.by_seat(own.reshape(*own.shape[:2], -1)) if part.is_team else own
        rows = np.zeros((seen.num_episodes, len(part.agents), *self._shape), np.float32)
        for some, where, read in self._kinds:
            own = seen.read(some, read)
            if part.is_team:
                own = own.reshape(*own.shape[:2], -1)
                rows[:, where, : own.shape[2]] = own
            else:
                rows[:, where] = own
        return part.by_seat(rows)


class Mask(Input):
    """Which actions are available: 1 for those that are; all actions of an agent without a mask.

    Absent agents of a group have all actions, without effect, since a distribution needs one.
    """

    key = ACTION_MASK

    def __init__(self, part: Part) -> None:
        self._part = part
        actions = part.seats[0].actions
        own = np.concatenate([seat.actions.masks for seat in part.seats])
        absent = np.concatenate([seat.actions.absent_masks for seat in part.seats])
        self._same = _Same(np.where(part.is_here[:, None], own, absent))
        self._width = actions.mask_shape[-1]
        masked = [member for member in part.agents if member.is_masked]
        # Agents that observe alike may still have other choices behind a mask.
        forms = [m.form for i, m in enumerate(masked) if m.form not in [o.form for o in masked[:i]]]
        self._kinds = [
            (some, where, part.first_of(where))
            for form in forms
            for some, where in by_kind(
                [m.agent_id if m.is_masked and m.form == form else None for m in part.agents],
                part.layout.observed,
                part.layout,
            )
        ]
        self._are_alike = part.are_all(self._kinds)

    @staticmethod
    def space(seat: Seat) -> Space | None:
        if not seat.actions.reads_masks and not seat.has_masks:
            return None
        return Box(seat.actions.mask_shape, "float32", 0.0, 1.0)

    def read(self, seen: Seen, found: Mapping[str, Any]) -> np.ndarray:
        part = self._part
        if self._are_alike:
            some, _, member = self._kinds[0]
            masks = self._given(seen, some, member)
            if masks.shape[2] == self._width:
                return part.by_seat(masks)
        masks = self._same.of(seen.num_episodes)
        if self._kinds:
            masks = masks.copy()
        for some, where, member in self._kinds:
            given = self._given(seen, some, member)
            masks[:, where, : given.shape[2]] = given
        return part.by_seat(masks)

    def _given(self, seen: Seen, some: OfKind, member: Member) -> np.ndarray:
        masks = member.form.read_masks(member.mask(some.of(seen.observations)))
        is_any: Any = masks.any(axis=-1)
        if is_any.all():
            return masks
        if not seen.is_final:
            raise self._none_available(some.agents[int(np.argmin(is_any.all(axis=0)))])
        return np.where(is_any[..., None], masks, np.float32(1.0))

    def _none_available(self, agent_id: str) -> ValueMismatch:
        if not self._part.is_team:
            return none_available(agent_id)
        group = next(seat.seat_id for seat in self._part.seats if agent_id in seat.members)
        return ValueMismatch(f"group {group!r}: {NONE_AVAILABLE.format(agent_id)}")


class State(Input):
    """What mixers and critics read in training.

    It is the state that the simulation sends; else the state that the agents in view observe (key
    ``state``, the same for all of them); else, or without `use_global_state`, their observations
    side by side. There, agents without an observation have zeros. If members may come late, a 1
    follows for each agent that has departed: zeros alone do not tell such an agent from one that is
    still to come, and the mixer would value a death like a late arrival.
    """

    key = STATE

    def __init__(self, part: Part) -> None:
        self._part = part
        seat = part.seats[0]
        assert seat.state_size is not None
        self._size, self._read_sent = seat.state_size, seat.read_state
        self._marks_departed = seat.allows_late
        views = {seat.view: seat for seat in part.seats}
        self._views = [_View(one, part) for one in views.values()]
        self._view_of = [list(views).index(seat.view) for seat in part.seats]
        self._are_rows = part.is_team and not any(view.is_observed for view in self._views)
        self._absent = np.flatnonzero(~part.is_here & (not part.is_team))
        self._absent_places = places_of([part.names[i] for i in self._absent], part.layout)

    @staticmethod
    def space(seat: Seat) -> Space | None:
        return None if seat.state_size is None else Box((seat.state_size,))

    def read(self, seen: Seen, found: Mapping[str, Any]) -> np.ndarray:
        num_seats = len(self._part.seats)
        if self._read_sent is not None:
            states = [self._sent(seen, self._read_sent)]
        elif self._are_rows:
            return self._rows(seen, found[OBS])
        else:
            states = [view.read(seen) for view in self._views]
        if num_seats == 1:
            state = states[0][:, None]
        elif len(states) == 1:
            shape = seen.num_episodes, num_seats, self._size
            state = np.broadcast_to(states[0][:, None], shape)
        else:
            state = np.stack([states[i] for i in self._view_of], axis=1)
        if not len(self._absent):
            return state
        # Yu et al. 2022, "death masking": for a departed agent the critic sees nothing but the id.
        state = np.array(state)
        rows, columns = np.nonzero(seen.departed[:, self._absent_places])
        state[rows, self._absent[columns]] = 0.0
        return state

    def _sent(self, seen: Seen, read: Reader) -> np.ndarray:
        if seen.state is None:
            return np.zeros((seen.num_episodes, self._size), np.float32)
        return read(seen.state)

    def _rows(self, seen: Seen, obs: np.ndarray) -> np.ndarray:
        """Returns a team's padded observations side by side."""
        state = obs.reshape(*obs.shape[:2], -1)
        if self._marks_departed:
            departed = self._part.by_seat(seen.have_departed(self._part.places))
            state = np.concatenate([state, departed], axis=-1)
        return state


class _View:
    """The state that a seat sees, as the agents in its view observe it."""

    def __init__(self, seat: Seat, part: Part) -> None:
        names, layout = [member.agent_id for member in seat.view], part.layout
        assert seat.state_size is not None
        self._size = seat.state_size
        self._num_marks = len(names) if seat.allows_late else 0
        self._places = places_of(names, layout)
        self.is_observed = any(member.read_state for member in seat.view)
        self._observing: list[tuple[OfKind, Reader]] = []
        """The agents in the layout that observe the state."""
        self._here: list[tuple[OfKind, Reader, slice]] = []
        """The agents in the layout, with the places of their observations in the state."""
        sizes = [flat_size(member.own_space) for member in seat.view]
        starts = np.cumsum([0, *([max(sizes)] * len(sizes) if part.is_team else sizes)])
        for member, start, size in zip(seat.view, starts, sizes, strict=False):
            for some, _ in by_kind([member.agent_id], layout.observed, layout):
                self._here.append((some, member.read, slice(start, start + size)))
                if member.read_state is not None:
                    self._observing.append((some, member.read_state))

    def read(self, seen: Seen) -> np.ndarray:
        """Returns the state ``[E, size]``: the one that the first agent observes, if any does."""
        if self._observing:
            some, read = self._observing[0]
            return read(some.of(seen.observations)[STATE]).reshape(seen.num_episodes, -1)
        states = np.zeros((seen.num_episodes, self._size), np.float32)
        if self.is_observed:
            return states
        for some, read, place in self._here:
            own = seen.read(some, read)
            states[:, place] = own.reshape(len(own), -1)
        if self._num_marks:
            states[:, -self._num_marks :] = seen.have_departed(self._places)
        return states


class AgentId(Input):
    """Which of the agents in view the seat is, one-hot."""

    key = AGENT_ID

    def __init__(self, part: Part) -> None:
        views = [[member.agent_id for member in seat.view] for seat in part.seats]
        numbers = [view.index(seat.seat_id) for view, seat in zip(views, part.seats, strict=True)]
        self._same = _Same(np.eye(len(views[0]), dtype=np.float32)[numbers])

    @staticmethod
    def space(seat: Seat) -> Space:
        return Box((len(seat.view),), "float32", 0.0, 1.0)

    def read(self, seen: Seen, found: Mapping[str, Any]) -> np.ndarray:
        return self._same.of(seen.num_episodes)


class Alive(Input):
    """Whether each agent acts now, 1, or is absent, 0; for agents that may be absent."""

    key = ALIVE

    def __init__(self, part: Part) -> None:
        self._part = part
        here = part.is_here.astype(np.float32)
        self._same = _Same(here if part.is_team else here[:, None])

    @staticmethod
    def space(seat: Seat) -> Space | None:
        if seat.reward == "own":
            return None
        return Box((len(seat.agents),), "float32", 0.0, 1.0)

    def read(self, seen: Seen, found: Mapping[str, Any]) -> np.ndarray:
        return self._part.by_seat(self._same.of(seen.num_episodes))


class LastAction(Remembering):
    """The last action in the network's form; -1 before the first one, and for absent members."""

    key = LAST_ACTION

    def __init__(self, part: Part) -> None:
        self._part = part
        self._here = index_of(np.flatnonzero(part.is_here).tolist())
        here = [name for name in part.names if name in part.layout.agents]
        self._places = places_of(here, part.layout)
        self._are_all = len(here) == len(part.names)

    @staticmethod
    def space(seat: Seat) -> Space:
        _, num = seat.actions.masks.shape
        return Box((len(seat.agents),), "float32", float(NO_ACTION), num - 1.0)

    def read(self, seen: Seen, found: Mapping[str, Any]) -> np.ndarray:
        last = seen.memory.last_actions[grid(seen.where, self._places)]
        if self._are_all:
            last = np.array(last)
        else:
            ours, last = last, np.full((len(last), len(self._part.names)), NO_ACTION, np.float32)
            last[:, self._here] = ours
        if seen.back:
            last[:, [name in seen.back for name in self._part.names]] = NO_ACTION
        return self._part.by_seat(last)

    def remember(self, actions: np.ndarray, memory: Memory, where: Slots) -> None:
        memory.last_actions[grid(where, self._places)] = actions[:, self._here]


class _Same:
    """Rows that are the same in each step of a layout."""

    def __init__(self, rows: np.ndarray) -> None:
        self._rows = rows[None]

    def of(self, num_episodes: int) -> np.ndarray:
        """Returns the rows for a number of episodes."""
        if len(self._rows) != num_episodes:
            self._rows = np.broadcast_to(self._rows[0], (num_episodes, *self._rows.shape[1:]))
        return self._rows
