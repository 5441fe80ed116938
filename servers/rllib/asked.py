"""What one forward pass is asked, and what it answers: rows that came one by one, or as arrays.

Both look the same to a policy: B rows of observations and recurrent states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tree

from muxrl.protocol.rows import each_array
from muxrl.servers.agents.seats import SeatAction, SeatRequest
from muxrl.servers.episodes.passes import Pass
from muxrl.servers.episodes.rows import Chosen, RowStep
from muxrl.servers.episodes.trajectories import at, concatenated, flat

Extras = dict[str, Any]


class Answer(NamedTuple):
    """What a policy says to B rows."""

    actions: Any
    """``[B, ...]``."""
    extras: Extras
    """Name to ``[B, ...]``, or to a tree of such."""
    state: Any = None
    """Tree of ``[B, ...]``; None where the module has no recurrent state."""


class Asked:
    """Rows of one pass that came one by one."""

    def __init__(self, of: Pass, requests: Sequence[SeatRequest]) -> None:
        self.policy_id, self.should_explore, self.is_training, self.is_untrained = of
        self.requests = requests
        self.action_space = requests[0].seat.action_space

    def __len__(self) -> int:
        return len(self.requests)

    def observations(self, keys: Sequence[str] | None) -> Any:
        """Returns them stacked, an array or a dict; of a dict these keys, all with None."""
        observations = [request.observation for request in self.requests]
        if keys is not None:
            return {key: _rows([one[key] for one in observations]) for key in keys}
        if isinstance(observations[0], np.ndarray):
            return _rows(observations)
        return tree.map_structure(lambda *leaves: _rows(list(leaves)), *observations)

    def states(self, module: Any) -> Any:
        """Returns recurrent states, a dict of arrays."""
        states = [request.module_state for request in self.requests]
        return _stacked_states(states, module)


class AskedInRows:
    """Rows of one pass that came as arrays ``[E, S, ...]``, of one or more steps."""

    requests: Sequence[SeatRequest] = ()

    def __init__(self, of: Pass, benches: Sequence[tuple[RowStep, int]]) -> None:
        self.policy_id, self.should_explore, self.is_training, self.is_untrained = of
        self._benches = benches
        step, number = benches[0]
        self.action_space = step.benches.benches[number].seats[0].action_space
        self._leads = [(len(s.episodes), len(s.benches.benches[i].seats)) for s, i in benches]

    def __len__(self) -> int:
        return sum(num_episodes * num_seats for num_episodes, num_seats in self._leads)

    def observations(self, keys: Sequence[str] | None) -> Any:
        parts = []
        for step, number in self._benches:
            rows = step.observations[number]
            parts.append(flat(rows if keys is None else {key: rows[key] for key in keys}))
        return parts[0] if len(parts) == 1 else concatenated(parts)

    def states(self, module: Any) -> Any:
        parts = []
        for (step, number), (num_episodes, num_seats) in zip(
            self._benches, self._leads, strict=True
        ):
            states = step.module_states[number]
            if not isinstance(states, dict):  # an episode that begins has none yet
                of_episodes = [None] * num_episodes if states is None else states
                states = _stacked_states(
                    [at(s, i) for s in of_episodes for i in range(num_seats)], module
                )
                parts.append(states)
            else:
                parts.append(flat(states))
        return parts[0] if len(parts) == 1 else concatenated(parts)

    def split(self, answer: Answer) -> list[Chosen]:
        """Returns an answer to all rows as one for each bench."""
        chosen = []
        first = 0
        for lead in self._leads:
            rows = slice(first, first + lead[0] * lead[1])
            first = rows.stop
            chosen.append(Chosen(*(_shaped(part, rows, lead) for part in answer)))
        return chosen


AnyAsked = Asked | AskedInRows


def by_row(answer: Answer) -> list[SeatAction]:
    """Splits an answer by row."""
    actions, extras, state = answer
    columns = extras.items()
    return [
        SeatAction(
            action,
            {name: at(part, row) for name, part in columns} if extras else {},
            None if state is None else at(state, row),
        )
        for row, action in enumerate(actions)
    ]


def _stacked_states(states: Sequence[Any], module: Any) -> Any:
    """Returns recurrent states, of each row one or None, as a dict of arrays."""
    if any(state is None for state in states):
        initial = tree.map_structure(np.asarray, module.get_initial_state())
        states = [initial if state is None else state for state in states]
    return tree.map_structure(lambda *leaves: np.stack(leaves), *states)


def _rows(values: list[np.ndarray]) -> np.ndarray:
    return values[0][None] if len(values) == 1 else np.array(values)  # np.stack takes longer


def _shaped(columns: Any, rows: slice, lead: tuple[int, int]) -> Any:
    """Returns some rows ``[B, ...]`` as ``[E, S, ...]``, of a tree of arrays or None."""
    return each_array(lambda column: column[rows].reshape(*lead, *column.shape[1:]), columns)
