"""Warns of a number that is far larger than all before it: below every limit, but maybe a mistake.

Numbers are looked at when a batch is delivered, not in each step, for which simulations wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from muxrl.servers.episodes.trajectories import Chunk, Trajectory
from muxrl.servers.episodes.warnings import Warnings

_NUM_KNOWN = 1_000
"""Number of agents' steps after which it is known what is usual."""
_FAR = 1e3
_LARGE = 1e4
"""Smallest number to warn of: a first goal of 10 among steps of -0.001 is no mistake."""
_MOST_NUMBERS = 4_096
"""Most numbers of an observation to look at: larger ones, such as images, would take long."""


class FarValues:
    """The largest reward and observation so far; warns of one that is far beyond it.

    A number that was warned of becomes the largest.
    """

    def __init__(self, warnings: Warnings) -> None:
        self._warnings = warnings
        self._num = 0
        """Agents' steps so far."""
        self._largest = {"reward": (0.0, ""), "observation": (0.0, "")}

    def largest(self) -> list[tuple[float, str]]:
        """Returns the largest reward and observation, each with its agent and episode."""
        return [*self._largest.values()]

    def look_at(self, chunks: Iterable[Chunk]) -> None:
        """Looks at the rewards and observations of a batch."""
        played = [one for chunk in chunks for one in chunk.trajectories if len(one)]
        rewards = [[one.rewards] for one in played]
        self._look_at("reward", played, rewards)
        self._look_at("observation", played, [[*_numbers(one.observations)] for one in played])
        self._num += sum(map(len, played))

    def _look_at(
        self, what: str, played: Sequence[Trajectory], values: Sequence[Sequence[np.ndarray]]
    ) -> None:
        leaves = [leaf.reshape(-1) for of_one in values for leaf in of_one]
        if not leaves or _largest_of(np.concatenate(leaves))[0] <= abs(self._largest[what][0]):
            return
        num = self._num
        for one, of_one in zip(played, values, strict=True):
            for leaf in of_one:
                size, number = _largest_of(leaf)
                if size > (before := abs(self._largest[what][0])):
                    where = f"{what} of {one.seat_id!r} in episode {one.episode_id}"
                    self._largest[what] = number, f"the {where}"
                    if num >= _NUM_KNOWN and size > max(_LARGE, _FAR * before):
                        self._say(what, where, number, num, before)
            num += len(one)

    def _say(self, what: str, where: str, number: float, num: int, before: float) -> None:
        a, verb = ("an", "holds") if what == "observation" else ("a", "is")
        self._warnings.add(
            f"far {what}s",
            f"{a} {where} {verb} {number:.3g}, but the largest number in the {num} {what}s before "
            f"was {before:.3g}: is it a mistake? limits.max_abs_{what} can refuse such numbers",
        )


def _largest_of(values: np.ndarray) -> tuple[float, float]:
    """Returns the largest distance of some numbers from 0, and the number at that distance."""
    low, high = float(values.min()), float(values.max())
    return max(high, -low), high if high >= -low else low


def _numbers(rows: Any) -> Iterator[np.ndarray]:
    """Yields the arrays ``[n, ...]`` of rows that can hold a far value: integers cannot."""
    if isinstance(rows, dict):
        for part in rows.values():
            yield from _numbers(part)
    elif rows.dtype.kind == "f" and 0 < rows[0].size <= _MOST_NUMBERS:
        yield rows
