"""Replay of single steps, with n-step returns, that stores each observation once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from muxrl.protocol.rows import pick
from muxrl.servers.agents.keys import OBS
from muxrl.servers.algorithms.columns import ACTIONS, NEXT_OBS, REWARDS, TERMINATEDS
from muxrl.servers.algorithms.replay.priorities import Priorities
from muxrl.servers.algorithms.replay.replay import (
    ROWS,
    WEIGHTS,
    Replay,
    columns_of,
    read,
    stored_dtype,
    value_of,
)
from muxrl.servers.episodes.trajectories import Trajectory, concatenated
from muxrl.servers.trainers.budget import STEP_BYTES

N_STEP = "n_step"
"""RLlib's name of the column for the number of steps in a return."""


class _Fragment(NamedTuple):
    """The part of a trajectory that is stored."""

    trajectory: Trajectory
    last: int | None
    """Number of the row that it continues from; None: it begins with its own first row."""
    first: int
    """The first step of the trajectory that is stored."""


class StepReplay(Replay):
    """A ring buffer of rows: each an observation and, if a step began at it, what followed.

    ::

        row        0        1        2        3        4        5
        episode    one      one      other    one      other    one
        ahead      1        2        2        2        none     none

    The observation after a step is one or more rows ahead, since pieces of other episodes may come
    between. The last observation of an episode, or of its newest piece, is a row without a step.
    The rows ahead are newer, so that they are never overwritten first.

    `sample` returns ``OBS``, ``NEXT_OBS``, ``ACTIONS``, ``REWARDS``, ``TERMINATEDS`` (1 where
    nothing follows, 0 at a truncation), each ``[B, ...]`` float32, integer actions int64;
    ``n_step [B]``, and ``weights [B]`` float32; if drawn by priority, also ``rows``. The reward is
    the sum of gamma**i * r_{t+i} over i < k, and ``NEXT_OBS`` the observation after k steps, where
    k is n, or fewer at the end of an episode. Draws are with replacement.

    Args:
        capacity: number of rows, less one. Memory is taken as rows are first written.
        seed: of the sampling.
        n_step: n.
        gamma: the discount factor.
        by_priority: alpha and beta of `Priorities`; None: steps are drawn uniformly.
    """

    unit = "steps"

    def __init__(
        self,
        capacity: int,
        seed: int | None = None,
        *,
        n_step: int = 1,
        gamma: float = 1.0,
        by_priority: tuple[float, float] | None = None,
    ) -> None:
        self._size = capacity + 1
        priorities = Priorities(self._size, *by_priority) if by_priority else None
        super().__init__(capacity, seed, priorities)
        self._n_step = n_step
        self._gamma = gamma
        self._num_steps = 0
        self._num_added = 0
        """Rows written so far; the newest is row ``(_num_added - 1) % _size``."""
        self._ahead = np.zeros(self._size, np.int32)
        self._rewards = np.zeros(self._size, np.float32)
        self._terminated = np.zeros(self._size, bool)
        self._open: dict[str, tuple[int, int]] = {}
        """By life of a seat that may continue: the number of its last row, and its steps so far."""

    def __len__(self) -> int:
        return self._num_steps

    @property
    def _num_rows(self) -> int:
        return min(self._num_added, self._size)

    @property
    def num_bytes(self) -> int:
        per_row = sum(column[:1].nbytes for column in self._columns.values())
        return self._num_rows * (per_row + STEP_BYTES)

    def add(self, *trajectories: Trajectory) -> int:
        together: dict[str, _Fragment] = {}
        num_rows, needed = 0, self._num_added  # `needed`: oldest row that is continued from
        for one in trajectories:
            if not len(one):
                continue
            most = num_rows + len(one) + 1
            last, t = self._open.get(one.id, (-1, -1))
            before = last if t == one.t else self._num_added
            # No piece may overwrite the row that another one continues from.
            if one.id in together or min(needed, before) < self._num_added + most - self._size:
                self._write(list(together.values()))
                together, num_rows, needed = {}, 0, self._num_added
                most = len(one) + 1
                last, t = self._open.get(one.id, (-1, -1))
            continues = t == one.t and last >= self._num_added + len(one) - self._size
            # If there is no room for all steps, the newest are stored.
            first = 0 if continues else max(0, most - self._size)
            together[one.id] = _Fragment(one, last if continues else None, first)
            num_rows = most
            needed = min(needed, last) if continues else needed
        self._write(list(together.values()))
        return sum(map(len, trajectories))

    def _write(self, pieces: Sequence[_Fragment]) -> None:
        """Stores pieces of different episodes, which must fit into the ring together."""
        if not pieces:
            return
        nums = np.array([len(one) - first for one, _, first in pieces])
        is_new = np.array([last is None for _, last, _ in pieces])
        seen = [
            pick(one.observations, slice(first + (last is not None), None))
            for one, last, first in pieces
        ]
        observed = columns_of("obs", concatenated(seen))
        actions = columns_of("actions", _joined_after("actions", pieces))
        if not self._columns:
            self._columns = {
                name: np.zeros((self._size, *column.shape[1:]), stored_dtype(name, column))
                for name, column in {**observed, **actions}.items()
            }
        numbers = self._allocate(int(nums.sum() + is_new.sum()))
        for name, column in observed.items():
            self._columns[name][numbers % self._size] = column
        ends = np.cumsum(nums + is_new)
        follows = np.ones(len(numbers), bool)  # all but the first observations
        follows[(ends - nums - 1)[is_new]] = False
        following = numbers[follows]
        begun = following - 1
        last_steps = np.cumsum(nums) - 1
        begun[(last_steps - nums + 1)[~is_new]] = [
            last for _, last, _ in pieces if last is not None
        ]
        rows = begun % self._size
        for name, column in actions.items():
            self._columns[name][rows] = column
        self._rewards[rows] = _joined_after("rewards", pieces)
        self._ahead[rows] = following - begun
        self._terminated[rows] = False
        self._terminated[rows[last_steps]] = [one.is_terminated for one, _, _ in pieces]
        self._num_steps += len(rows)
        if self._priorities is not None:
            self._priorities.add(rows)
        for (one, _, _), number in zip(pieces, numbers[ends - 1].tolist(), strict=True):
            self._open.pop(one.id, None)
            if not (one.is_terminated or one.is_truncated):
                self._open[one.id] = number, one.t + len(one)

    def _allocate(self, num: int) -> np.ndarray:
        """Makes room for `num` rows, and returns their numbers, ``[num]`` int64."""
        numbers = np.arange(self._num_added, self._num_added + num)
        self._num_added += num
        rows = numbers % self._size
        dropped = rows[self._ahead[rows] > 0]
        self._num_steps -= len(dropped)
        self._ahead[rows] = 0
        if self._priorities is not None:
            self._priorities.remove(dropped)
        if rows[-1] < num:  # once a round: drops lives whose last row was overwritten
            oldest = self._num_added - self._size
            self._open = {i: own for i, own in self._open.items() if own[0] >= oldest}
        return numbers

    def sample(self, num: int) -> dict[str, Any]:
        rows, weights = self._draw(num)
        last, rewards = rows, self._rewards[rows]
        num_steps = np.ones(num, np.int64)
        for k in range(1, self._n_step):
            following = self._following(last)
            has_step = self._ahead[following] > 0
            rewards = rewards + self._gamma**k * self._rewards[following] * has_step
            last = np.where(has_step, following, last)
            num_steps += has_step
        following = self._following(last)
        drawn = {name: read(c, rows) for name, c in self._columns.items()}
        observed = {n: c for n, c in self._columns.items() if n.partition(".")[0] == "obs"}
        after = {name: read(column, following) for name, column in observed.items()}
        return {
            OBS: value_of("obs", drawn),
            NEXT_OBS: value_of("obs", after),
            ACTIONS: value_of("actions", drawn),
            REWARDS: rewards.astype(np.float32, copy=False),
            TERMINATEDS: self._terminated[last].astype(np.float32),
            N_STEP: num_steps,
            WEIGHTS: np.ones(num, np.float32) if weights is None else weights,
            **({} if weights is None else {ROWS: rows}),
        }

    def _following(self, rows: np.ndarray) -> np.ndarray:
        return (rows + self._ahead[rows]) % self._size

    def _draw(self, num: int) -> tuple[np.ndarray, np.ndarray | None]:
        if self._priorities is not None:
            return self._priorities.draw(self._num_steps, num, self._rng)
        rows = self._rng.integers(self._num_rows, size=num)
        while len(without := np.flatnonzero(self._ahead[rows] == 0)):
            rows[without] = self._rng.integers(self._num_rows, size=len(without))
        return rows, None

    def get_state(self) -> dict[str, Any]:
        num = self._num_rows
        state = {
            "num_added": self._num_added,
            "columns": {name: column[:num].copy() for name, column in self._columns.items()},
            "ahead": self._ahead[:num].copy(),
            "rewards": self._rewards[:num].copy(),
            "terminated": self._terminated[:num].copy(),
            "open": [[life, *own] for life, own in self._open.items()],
            "rng": self._rng.bit_generator.state,
        }
        if self._priorities is not None:
            state["priorities"] = self._priorities.get_state(num)
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        num, num_added = len(state["ahead"]), int(state["num_added"])
        if num > self._size:
            raise ValueError(
                f"{num - 1} steps were kept, and the replay now holds {self._capacity} "
                "(its capacity)"
            )
        self._rng.bit_generator.state = state["rng"]
        # In a larger ring than before, rows lie at the places of their numbers in it.
        numbers = np.arange(num_added - num, num_added)
        rows, before = numbers % self._size, numbers % num if num else numbers
        self._num_added = num_added
        for name, column in state["columns"].items():
            self._columns[name] = np.zeros((self._size, *column.shape[1:]), column.dtype)
            self._columns[name][rows] = column[before]
        self._ahead[rows] = state["ahead"][before]
        self._rewards[rows] = state["rewards"][before]
        self._terminated[rows] = state["terminated"][before]
        self._num_steps = int((self._ahead > 0).sum())
        self._open = {life: (int(number), int(t)) for life, number, t in state["open"]}
        if self._priorities is None:
            return
        if (saved := state.get("priorities")) is not None:
            self._priorities.set_state(rows, {**saved, "values": saved["values"][before]})
        else:
            self._priorities.set_state(rows[self._ahead[rows] > 0], None)


def _joined_after(what: str, pieces: Sequence[_Fragment]) -> Any:
    """Returns the actions or rewards of all pieces, without the steps that are left out."""
    return concatenated([pick(getattr(one, what), slice(first, None)) for one, _, first in pieces])
