"""Replay of whole episodes, for networks that must see one from its start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from muxrl.servers.algorithms.columns import ACTIONS, LOSS_MASK, OBS, REWARDS, TERMINATEDS
from muxrl.servers.algorithms.replay.columns import columns_of, read, stored_dtype, value_of
from muxrl.servers.algorithms.replay.priorities import Priorities, PrioritySettings
from muxrl.servers.algorithms.replay.replay import ROWS, WEIGHTS, Replay
from muxrl.servers.episodes.trajectories import Trajectory


class EpisodeReplay(Replay):
    """A ring of rows, one for each observation; an episode of T steps takes T + 1 in a row.

    It grows until the newest `capacity` episodes fit.

    An episode that comes in chunks is stored as so many episodes: each is bootstrapped from its
    last observation, and a GRU starts from zero in the middle of the episode. Ask env runners for
    ``batch_mode="complete_episodes"`` to avoid that.

    `sample` draws without replacement, or by priority, and as many episodes as are stored if they
    are fewer. It returns, padded with zeros to T, the length of the longest: ``OBS [B, T + 1,
    ...]`` float32, ``ACTIONS [B, T, ...]``; ``REWARDS``, ``TERMINATEDS`` (1 at the last step of a
    terminated, not truncated, episode) and ``LOSS_MASK`` (1 where there is data; PyMARL's
    ``filled``), each ``[B, T]`` float32. Drawn by priority, also ``rows`` and ``weights``, ``[B]``.

    Args:
        capacity: in episodes.
        seed: of the sampling.
        by_priority: how episodes are drawn by priority; None: uniformly.
    """

    unit = "episodes"

    def __init__(
        self,
        capacity: int,
        seed: int | None = None,
        by_priority: PrioritySettings | None = None,
    ) -> None:
        super().__init__(capacity, seed, Priorities(capacity, by_priority) if by_priority else None)
        self._next = 0
        self._num_stored = 0
        self._first_row = np.zeros(capacity, np.int64)
        self._lengths = np.zeros(capacity, np.int64)
        self._terminated = np.zeros(capacity, bool)
        self._num_rows = 0
        """In the ring; each column has one more, of zeros, which padding is read from."""
        self._next_row = 0
        self._num_used = 0
        """Rows of stored episodes, up to `_next_row`."""

    def __len__(self) -> int:
        return self._num_stored

    @property
    def num_bytes(self) -> int:
        return self._num_used * sum(column[:1].nbytes for column in self._columns.values())

    def add(self, *trajectories: Trajectory) -> int:
        stored = [one for one in trajectories if len(one)]
        for one in stored:
            rewards = np.asarray(one.rewards, np.float32)
            self._write(
                columns_of("obs", one.observations),
                {**columns_of("actions", one.actions), "rewards": rewards},
                is_terminated=one.is_terminated,
            )
        return len(stored)

    def _write(
        self,
        observed: Mapping[str, np.ndarray],
        followed: Mapping[str, np.ndarray],
        *,
        is_terminated: bool,
    ) -> None:
        """Puts an episode into the place of the oldest."""
        place, num_rows = self._next, len(followed["rewards"]) + 1
        if self._num_stored == self._capacity:
            self._num_used -= int(self._lengths[place]) + 1
        if self._num_used + num_rows > self._num_rows:
            self._grow(self._num_used + num_rows, {**observed, **followed})
        rows = (self._next_row + np.arange(num_rows)) % self._num_rows
        for name, column in observed.items():
            self._columns[name][rows] = column
        for name, column in followed.items():
            self._columns[name][rows[:-1]] = column
            self._columns[name][rows[-1]] = 0
        self._first_row[place] = rows[0]
        self._lengths[place] = num_rows - 1
        self._terminated[place] = is_terminated
        self._num_used += num_rows
        self._next_row = (self._next_row + num_rows) % self._num_rows
        if self._priorities is not None:
            self._priorities.add(np.array([place]))
        self._next = (place + 1) % self._capacity
        self._num_stored = min(self._num_stored + 1, self._capacity)

    def _grow(self, num_rows: int, columns: Mapping[str, np.ndarray]) -> None:
        """Makes the ring longer, by half at least, so that not every episode copies everything."""
        before = max(1, self._num_rows)
        oldest = (self._next_row - self._num_used) % before
        held = (oldest + np.arange(self._num_used)) % before
        self._num_rows = max(num_rows, self._num_rows + self._num_rows // 2)
        for name, column in columns.items():
            longer = np.zeros((self._num_rows + 1, *column.shape[1:]), stored_dtype(name, column))
            if self._num_used:
                longer[: self._num_used] = self._columns[name][held]
            self._columns[name] = longer
        self._first_row = (self._first_row - oldest) % before
        self._next_row = self._num_used

    def sample(self, num: int) -> dict[str, Any]:
        self._check_holds_any()
        num = min(num, self._num_stored)
        if self._priorities is None:
            drawn = self._rng.choice(self._num_stored, num, replace=False, shuffle=False)
            by_priority = {}
        else:
            drawn, weights = self._priorities.draw(self._num_stored, num, self._rng)
            by_priority = {ROWS: drawn, WEIGHTS: weights}
        lengths = self._lengths[drawn][:, None]
        rows = self._rows_of(drawn)
        columns = {
            name: read(column, rows if name.partition(".")[0] == "obs" else rows[:, :-1])
            for name, column in self._columns.items()
        }
        steps = np.arange(rows.shape[1] - 1)
        ends = (steps == lengths - 1) & self._terminated[drawn][:, None]
        return {
            OBS: value_of("obs", columns),
            ACTIONS: value_of("actions", columns),
            REWARDS: columns["rewards"],
            TERMINATEDS: ends.astype(np.float32),
            LOSS_MASK: (steps < lengths).astype(np.float32),
            **by_priority,
        }

    def _rows_of(self, episodes: np.ndarray) -> np.ndarray:
        """Returns the rows of episodes, ``[B, T + 1]``, padded with that of zeros."""
        lengths = self._lengths[episodes][:, None]
        t = np.arange(lengths.max(initial=0) + 1)
        rows = (self._first_row[episodes][:, None] + t) % self._num_rows
        return np.where(t <= lengths, rows, self._num_rows)

    def get_state(self) -> dict[str, Any]:
        lengths = self._lengths[: self._num_stored]
        rows = self._rows_of(np.arange(self._num_stored))
        t = np.arange(rows.shape[1])
        seen, done = rows[t <= lengths[:, None]], rows[t < lengths[:, None]]
        packed = {
            name: column[seen if name.partition(".")[0] == "obs" else done]
            for name, column in self._columns.items()
        }
        priorities = {}
        if self._priorities is not None:
            priorities["priorities"] = self._priorities.get_state(self._num_stored)
        return {
            "next": self._next,
            "rng": self._rng.bit_generator.state,
            **priorities,
            "lengths": lengths.copy(),
            "terminated": self._terminated[: self._num_stored].copy(),
            "obs": value_of("obs", packed),
            "actions": value_of("actions", packed),
            "rewards": packed.get("rewards", np.zeros(0, np.float32)),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        num = len(state["lengths"])
        if num > self._capacity:
            raise ValueError(
                f"{num} episodes were kept, and the replay now holds {self._capacity} "
                "(buffer_capacity_episodes)"
            )
        observed = columns_of("obs", state["obs"])
        followed = columns_of("actions", state["actions"]) | {"rewards": state["rewards"]}
        ends = np.cumsum(state["lengths"])
        # The oldest first; with a larger capacity it is no longer the next to go.
        self._next = int(state["next"]) % num if num == self._capacity else 0
        for i in (self._next + np.arange(num)) % max(1, num):
            steps = slice(ends[i] - state["lengths"][i], ends[i])
            seen = slice(steps.start + i, steps.stop + i + 1)
            self._write(
                {name: column[seen] for name, column in observed.items()},
                {name: column[steps] for name, column in followed.items()},
                is_terminated=bool(state["terminated"][i]),
            )
        self._rng.bit_generator.state = state["rng"]
        if self._priorities is not None and num:
            self._priorities.set_state(np.arange(num), state.get("priorities"))
