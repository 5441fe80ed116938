"""Running mean and variance of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


class RunningStatistics:
    """Mean and variance of arrays of one shape, elementwise, in float64.

    Batches are merged as in Chan, Golub and LeVeque (1979), without the cancellation of a sum of
    squares: the result is numpy's ``mean`` and ``var`` over all arrays, up to rounding.

    Args:
        shape: of one array.

    Attributes:
        count: number of arrays so far.
        mean: float64 of that shape; 0 before the first array.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = 0
        self.mean: np.ndarray = np.zeros(shape)
        self._squares: np.ndarray = np.zeros(shape)
        """Sums of squared distances from the mean."""

    @property
    def variance(self) -> np.ndarray:
        """Population variance (``ddof=0``); 1 before there are two arrays."""
        if self.count < 2:
            return np.ones_like(self.mean)
        return np.asarray(self._squares / self.count)

    def add(self, batch: np.ndarray) -> None:
        """Counts some arrays.

        Args:
            batch: ``[n, *shape]``.
        """
        num = len(batch)
        total = self.count + num
        mean = batch[0] if num == 1 else batch.mean(axis=0)
        difference = mean - self.mean
        self._squares = self._squares + difference * difference * (self.count * num / total)
        if num > 1:
            self._squares = self._squares + np.square(batch - mean).sum(axis=0)
        self.mean = self.mean + difference * (num / total)
        self.count = total

    def add_number(self, number: float) -> float:
        """Counts one number, as `add` does, but five times as fast; returns the variance."""
        count, mean, squares = self.count, float(self.mean), float(self._squares)
        total = count + 1
        difference = number - mean
        squares = squares + difference * difference * (count / total)
        self.mean = np.float64(mean + difference * (1 / total))  # type: ignore[assignment]
        self._squares = np.float64(squares)  # type: ignore[assignment]
        self.count = total
        return squares / total if total > 1 else 1.0

    def get_state(self) -> dict[str, Any]:
        """Returns the whole state, as plain values and arrays."""
        return {"count": self.count, "mean": self.mean, "squares": self._squares}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues with a state that `get_state` returned.

        Raises:
            ValueError: it is of arrays of another shape.
        """
        mean, squares = (np.asarray(state[key], np.float64) for key in ("mean", "squares"))
        if mean.shape != self.mean.shape or squares.shape != self.mean.shape:
            raise ValueError(
                f"the saved statistics are of arrays of the shape {list(mean.shape)}, but arrays "
                f"of the shape {list(self.mean.shape)} are needed"
            )
        self.count, self.mean, self._squares = int(state["count"]), mean, squares
