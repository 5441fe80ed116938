"""Prioritised sampling from a replay, with the weights that correct the loss for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

# Least priority, so that exactly fitted entries are still drawn now and then; RLlib's
# ``prioritized_replay_eps``.
LOWEST = 1e-6


class Priorities:
    """Proportional prioritisation of a replay's rows, Schaul et al. 2016 (arXiv 1511.05952).

    Row i is drawn with ``P(i) = p_i^alpha / sum_j p_j^alpha``; a row with a large share may be
    drawn more than once. Its weight in the loss is ``(N P(i))^-beta``, divided by the largest
    weight in the batch, as in Dopamine and in Acme's R2D2. RLlib divides by the largest in the
    replay: there a single exactly fitted entry makes all weights small.

    Args:
        capacity: number of rows.
        alpha: 0 draws uniformly, 1 in proportion to priorities.
        beta: 0 leaves the loss as it is, 1 makes all stored entries count alike.
    """

    def __init__(self, capacity: int, alpha: float, beta: float) -> None:
        self._alpha, self._beta = alpha, beta
        self._values = np.zeros(capacity)
        self._highest = 0.0  # 0: none measured yet
        # A sum tree of p^alpha: node i has the children 2i and 2i + 1, row r is leaf `_first + r`.
        # Each sum is computed from its children, so that it depends on the rows alone.
        self._first = 1 << max(0, capacity - 1).bit_length()
        self._sums = np.zeros(2 * self._first)

    def add(self, rows: np.ndarray) -> None:
        """Gives new rows the highest priority seen so far, so that they are drawn soon."""
        self._set(rows, self._highest or 1.0)

    def remove(self, rows: np.ndarray) -> None:
        """Gives rows priority 0, so that they are not drawn any more."""
        self._set(rows, 0.0)

    def draw(
        self, num_stored: int, num: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws one row from each of `num` ranges of equal probability (appendix B.2.1 there).

        Args:
            num_stored: N, the number of rows that have a priority.
            num: number of draws.
            rng: draws `num` numbers.

        Returns:
            Rows, ``[num]`` int64, and their weights in the loss, ``[num]`` float32 in (0, 1].
        """
        sums = self._sums
        at = (np.arange(num) + rng.random(num)) / num * sums[1]
        nodes = np.ones(num, np.int64)
        while nodes[0] < self._first:
            nodes *= 2
            left = sums[nodes]
            # Rounding errors must not lead into an empty branch.
            is_right = (at >= left) & (sums[nodes + 1] > 0.0)
            at -= left * is_right
            nodes += is_right
        weights = (num_stored * sums[nodes] / sums[1]) ** -self._beta
        return nodes - self._first, (weights / weights.max()).astype(np.float32)

    def update(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Sets the priorities that an update measured.

        Args:
            rows: ``[num]``; if a row stands here more than once, its values are equal.
            values: ``[num]``. Infinite ones and NaN are left out, as their update was skipped.
        """
        is_finite = np.isfinite(values)
        if not is_finite.any():
            return
        values = np.maximum(values[is_finite], LOWEST)
        self._set(rows[is_finite], values)
        self._highest = max(self._highest, float(values.max()))

    def _set(self, rows: np.ndarray, values: np.ndarray | float) -> None:
        if not len(rows):
            return
        self._values[rows] = values
        nodes, values = self._first + rows, self._values[rows]
        # 0 ** 0 would be 1.
        self._sums[nodes] = np.where(values == 0.0, 0.0, values**self._alpha)
        while nodes[0] > 1:
            nodes = nodes >> 1
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    def get_state(self, num_stored: int) -> dict[str, Any]:
        """Returns the priorities of the first `num_stored` rows, as plain values and arrays."""
        return {"values": self._values[:num_stored].copy(), "highest": self._highest}

    def set_state(self, rows: np.ndarray, state: Mapping[str, Any] | None) -> None:
        """Loads what `get_state` returned.

        Args:
            rows: places of the saved rows now.
            state: of as many rows; None: of a replay that drew uniformly, so that all rows count
                as new.
        """
        self._set(rows, 1.0 if state is None else state["values"])
        if state is not None:
            self._highest = float(state["highest"])
