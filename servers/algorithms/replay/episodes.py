"""Replay of whole episodes, for networks that must see an episode from its start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from muxrl.servers.agents.keys import OBS
from muxrl.servers.algorithms.columns import ACTIONS, LOSS_MASK, REWARDS, TERMINATEDS
from muxrl.servers.algorithms.replay.priorities import Priorities
from muxrl.servers.algorithms.replay.replay import (
    ROWS,
    WEIGHTS,
    Replay,
    columns_of,
    stored_dtype,
    value_of,
)
from muxrl.servers.episodes.trajectories import Trajectory

_Columns = Mapping[str, np.ndarray]
"""By key: a column of an episode of T steps, with T rows, or T + 1 rows for observations."""


class EpisodeReplay(Replay):
    """Stores episodes, each in its own arrays.

    Each chunk of an episode that comes in chunks is stored as an episode: it is bootstrapped from
    its last observation, and a GRU starts from zero in the middle of the real episode.

    `sample` draws without replacement, or by priority; if fewer episodes are stored, as many as
    there are. It returns arrays padded with zeros to T, the length of the longest episode: ``OBS
    [B, T + 1, ...]`` float32, ``ACTIONS [B, T, ...]``; ``REWARDS``, ``TERMINATEDS`` (1 at the last
    step of a terminated, not truncated, episode) and ``LOSS_MASK`` (1 where there is data;
    PyMARL's ``filled``), each ``[B, T]`` float32. If drawn by priority, also ``rows`` and
    ``weights``, ``[B]``.

    Args:
        capacity: in episodes.
        seed: of the sampling.
        by_priority: alpha and beta of `Priorities`; None: episodes are drawn uniformly.
    """

    unit = "episodes"

    def __init__(
        self,
        capacity: int,
        seed: int | None = None,
        by_priority: tuple[float, float] | None = None,
    ) -> None:
        priorities = Priorities(capacity, *by_priority) if by_priority else None
        super().__init__(capacity, seed, priorities)
        self._episodes: list[_Columns] = []
        self._terminated = np.zeros(capacity, bool)
        self._next = 0
        """Place of the next episode, and of the oldest once the replay is full."""

    def __len__(self) -> int:
        return len(self._episodes)

    @property
    def num_bytes(self) -> int:
        return sum(column.nbytes for one in self._episodes for column in one.values())

    def add(self, *trajectories: Trajectory) -> int:
        stored = [one for one in trajectories if len(one)]
        for one in stored:
            columns = columns_of("obs", one.observations) | columns_of("actions", one.actions)
            columns["rewards"] = np.asarray(one.rewards, np.float32)
            place = self._next
            self._episodes[place : place + 1] = [  # appends until the replay is full
                {name: np.array(c, stored_dtype(name, c)) for name, c in columns.items()}
            ]
            self._terminated[place] = one.is_terminated
            if self._priorities is not None:
                self._priorities.add(np.array([place]))
            self._next = (place + 1) % self._capacity
        return len(stored)

    def sample(self, num: int) -> dict[str, Any]:
        num_stored = len(self)
        num, by_priority = min(num, num_stored), {}
        if self._priorities is None:
            drawn = self._rng.choice(num_stored, num, replace=False, shuffle=False)
        else:
            drawn, weights = self._priorities.draw(num_stored, num, self._rng)
            by_priority = {ROWS: drawn, WEIGHTS: weights}
        episodes = [self._episodes[place] for place in drawn.tolist()]
        columns = {name: _padded([one[name] for one in episodes]) for name in episodes[0]}
        steps, lengths = np.arange(columns["rewards"].shape[1]), _lengths(episodes)[:, None]
        ends = (steps == lengths - 1) & self._terminated[drawn][:, None]
        return {
            OBS: value_of("obs", columns),
            ACTIONS: value_of("actions", columns),
            REWARDS: columns["rewards"],
            TERMINATEDS: ends.astype(np.float32),
            LOSS_MASK: (steps < lengths).astype(np.float32),
            **by_priority,
        }

    def get_state(self) -> dict[str, Any]:
        names = self._episodes[0] if self._episodes else ()
        packed = {name: np.concatenate([one[name] for one in self._episodes]) for name in names}
        state = {
            "next": self._next,
            "rng": self._rng.bit_generator.state,
            "lengths": _lengths(self._episodes),
            "terminated": self._terminated[: len(self)].copy(),
            "obs": value_of("obs", packed),
            "actions": value_of("actions", packed),
            "rewards": packed.get("rewards", np.zeros(0, np.float32)),
        }
        if self._priorities is not None:
            state["priorities"] = self._priorities.get_state(len(self))
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        num = len(state["lengths"])
        if num > self._capacity:
            raise ValueError(
                f"{num} episodes were kept, and the replay now holds {self._capacity} "
                "(buffer_capacity_episodes)"
            )
        observed = columns_of("obs", state["obs"])
        followed = columns_of("actions", state["actions"]) | {"rewards": state["rewards"]}
        # In a larger replay than before, the next episode goes behind the others.
        self._next = int(state["next"]) % num if num == self._capacity else num
        self._terminated[:num] = state["terminated"]
        ends = np.cumsum(state["lengths"])
        for i in range(num):
            steps = slice(ends[i] - state["lengths"][i], ends[i])
            seen = slice(steps.start + i, steps.stop + i + 1)
            own = {name: column[seen].copy() for name, column in observed.items()}
            own |= {name: column[steps].copy() for name, column in followed.items()}
            self._episodes.append(own)
        self._rng.bit_generator.state = state["rng"]
        if self._priorities is not None and num:
            self._priorities.set_state(np.arange(num), state.get("priorities"))


def _lengths(episodes: Sequence[_Columns]) -> np.ndarray:
    return np.array([len(one["rewards"]) for one in episodes], np.int64)


def _padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Returns episodes' columns as one padded with zeros, for networks, ``[B, T, ...]``."""
    first, longest = rows[0], max(map(len, rows))
    dtype = np.float32 if first.dtype == np.bool_ else first.dtype
    padded = np.zeros((len(rows), longest, *first.shape[1:]), dtype)
    for place, own in zip(padded, rows, strict=True):
        place[: len(own)] = own
    return padded
