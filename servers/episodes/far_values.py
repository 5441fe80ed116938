"""Says when a number is far outside of what came before: finite, below every limit, and a mistake.

Looked at where batches are delivered, not in each step, for which simulations wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from muxrl.servers.episodes.trajectories import Chunk, Trajectory
from muxrl.servers.episodes.warnings import Warnings

_NUM_KNOWN = 1_000
"""Numbers of agents' steps that tell what is usual."""
_FAR = 1e3
_LARGE = 1e4
"""A first goal of 10 among steps of -0.001 is no mistake."""
_MOST_NUMBERS = 4_096
"""Of an observation: a batch of larger ones, images, takes long to look through."""


class FarValues:
    """The largest reward and observation so far, and a warning for one far beyond it.

    That one then is the largest.
    """

    def __init__(self, warnings: Warnings) -> None:
        self._rewards = _Largest(warnings, "reward", "is")
        self._observations = _Largest(warnings, "observation", "holds")

    def largest(self) -> list[tuple[float, str]]:
        """Returns the largest reward and observation, with whose each is."""
        return [self._rewards.largest, self._observations.largest]

    def look_at(self, chunks: Iterable[Chunk]) -> None:
        """Receives the rewards and observations of a batch."""
        played = [one for chunk in chunks for one in chunk.trajectories if len(one)]
        if not played:
            return
        self._rewards.look_at(played, [[one.rewards] for one in played])
        self._observations.look_at(played, [list(_numbers(one.observations)) for one in played])


class _Largest:
    def __init__(self, warnings: Warnings, what: str, verb: str) -> None:
        self.num = 0
        """Agents' steps so far."""
        self._warnings, self._what, self._verb = warnings, what, verb
        self._size = 0.0
        self.largest = (0.0, "")

    def look_at(self, played: Sequence[Trajectory], values: Sequence[Sequence[np.ndarray]]) -> None:
        """Receives the arrays of each trajectory."""
        leaves = [leaf.reshape(-1) for of_one in values for leaf in of_one]
        if leaves:
            together = np.concatenate(leaves)
            if max(float(together.max()), -float(together.min())) > self._size:
                for one, of_one in zip(played, values, strict=True):
                    for leaf in of_one:
                        self._look_at(one, leaf)
                    self.num += len(one)
                return
        self.num += sum(map(len, played))

    def _look_at(self, one: Trajectory, values: np.ndarray) -> None:
        low, high = float(values.min()), float(values.max())
        size = max(high, -low)
        if size <= self._size:
            return
        number = high if high >= -low else low
        where = f"{self._what} of {one.seat_id!r} in episode {one.episode_id}"
        self.largest = number, f"the {where}"
        if self.num >= _NUM_KNOWN and size > max(_LARGE, _FAR * self._size):
            self._warnings.add(
                f"far {self._what}s",
                f"{'an' if where[0] == 'o' else 'a'} {where} {self._verb} {number:.3g}, and the "
                f"largest of the {self.num} before it was {self._size:.3g}: is it a mistake? "
                f"limits.max_abs_{self._what} refuses larger ones",
            )
        self._size = size


def _numbers(rows: Any) -> Iterator[np.ndarray]:
    """Yields the arrays of rows that may hold any number, ``[n, ...]``: integers cannot."""
    if isinstance(rows, dict):
        for part in rows.values():
            yield from _numbers(part)
    elif rows.dtype.kind == "f" and 0 < rows[0].size <= _MOST_NUMBERS:
        yield rows
