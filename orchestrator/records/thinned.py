"""A curve of bounded length, however many points are added to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Point = tuple[Any, ...]
"""A point: x first, then its values."""

MOST_POINTS = 600
"""About two points for each pixel column of a phone, one for each in a panel on a wide screen."""


class Thinned:
    """Keeps points at equal distances: all of them, then every second, then every fourth...

    Args:
        merge: makes one point of two neighbours; None: the earlier one is kept for both, and so is
            the newest point, so that each point of the curve is one that was added.
        most: how many points are kept; even.
    """

    def __init__(
        self, merge: Callable[[Point, Point], Point] | None = None, most: int = MOST_POINTS
    ) -> None:
        self._merge = merge
        self._most = most
        self._kept: list[Point] = []
        self._newest: Point | None = None
        self._every = 1
        self._num_in_last = 0

    def add(self, point: Point) -> None:
        """Adds a point; earlier points whose x is not smaller are dropped."""
        while self._kept and self._kept[-1][0] >= point[0]:
            self._kept.pop()
            self._num_in_last = self._every
        self._newest = point
        if self._kept and self._num_in_last < self._every:
            self._kept[-1] = self._merged(self._kept[-1], point)
            self._num_in_last += 1
            return
        if len(self._kept) == self._most:
            pairs = zip(self._kept[::2], self._kept[1::2], strict=True)
            self._kept = [self._merged(first, second) for first, second in pairs]
            self._every *= 2
        self._kept.append(point)
        self._num_in_last = 1

    def _merged(self, first: Point, second: Point) -> Point:
        return first if self._merge is None else self._merge(first, second)

    @property
    def points(self) -> Sequence[Point]:
        """The kept points, in order of x."""
        if self._merge is not None or self._newest is None or self._kept[-1] == self._newest:
            return self._kept
        return [*self._kept, self._newest]
