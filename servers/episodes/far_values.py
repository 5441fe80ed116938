"""Says when a number is far outside of what came before: finite, below every limit, and a mistake.

Looked at where batches are delivered, not in each step, for which simulations wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from muxrl.servers.episodes.trajectories import Chunk, Trajectory, stacked
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
        """Takes in the rewards and observations of a batch."""
        for chunk in chunks:
            for one in chunk.trajectories:
                if len(one):
                    self._rewards.look_at(one, one.rewards)
                    for leaf in _numbers(one.observations):
                        self._observations.look_at(one, leaf)
                    self._rewards.num += len(one)
                    self._observations.num += len(one)


class _Largest:
    def __init__(self, warnings: Warnings, what: str, verb: str) -> None:
        self.num = 0
        """Agents' steps so far."""
        self._warnings, self._what, self._verb = warnings, what, verb
        self._size = 0.0
        self.largest = (0.0, "")

    def look_at(self, one: Trajectory, values: Any) -> None:
        if isinstance(values, list):  # of numbers: in less time than an array of them
            low, high = min(values), max(values)
        else:
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
    first = rows[0] if isinstance(rows, list) else rows
    if isinstance(first, Mapping):
        for key in first:
            yield from _numbers([row[key] for row in rows] if rows is not first else rows[key])
        return
    one = np.asarray(first if rows is not first else rows[0])
    if one.dtype.kind == "f" and 0 < one.size <= _MOST_NUMBERS:
        yield stacked(rows)
