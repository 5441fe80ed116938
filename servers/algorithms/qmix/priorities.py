"""Which episodes of a replay are drawn more often than others, and how the loss makes up for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

# So that an episode that is fitted exactly is still drawn now and then; RLlib's
# ``prioritized_replay_eps``.
LOWEST = 1e-6


@dataclass(frozen=True)
class PrioritySettings:
    """How much priorities mean.

    Attributes:
        alpha: 0 draws uniformly, 1 in proportion to priorities.
        beta: 0 leaves the loss as it is, 1 has all stored episodes count alike.
    """

    alpha: float
    beta: float


class Priorities:
    """Proportional prioritisation of a replay's rows, Schaul et al. 2016 (arXiv 1511.05952).

    Row i is drawn with ``P(i) = p_i^alpha / sum_j p_j^alpha``; a row is drawn more than once if its
    share is larger than a draw's. Its weight in the loss is ``(N P(i))^-beta``, divided by the
    largest of the batch, as in Dopamine and in Acme's R2D2. RLlib divides by the largest of the
    replay: there one episode that is fitted exactly makes all weights small.

    A draw adds up all priorities, which is quick for thousands of episodes; the paper has a tree
    for a million steps.

    Args:
        capacity: rows.
        settings: alpha and beta.
    """

    def __init__(self, capacity: int, settings: PrioritySettings) -> None:
        self._settings = settings
        self._values = np.zeros(capacity)
        self._highest = 0.0  # none was measured yet

    def add(self, row: int) -> None:
        """Gives a new row the highest priority seen so far, so that it is drawn soon."""
        self._values[row] = self._highest or 1.0

    def draw(
        self, num_stored: int, num: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws one row from each of `num` ranges of equal probability (appendix B.2.1 there).

        Args:
            num_stored: N; rows 0..N-1 are drawn.
            num: how many.
            rng: draws `num` numbers.

        Returns:
            Rows, ``[num]`` int64, and their weights in the loss, ``[num]`` float32 in (0, 1].
        """
        shares = self._values[:num_stored] ** self._settings.alpha
        ends = np.cumsum(shares)
        at = (np.arange(num) + rng.random(num)) / num * ends[-1]
        # Rounded up, the last one could lie on the very end.
        rows = np.minimum(np.searchsorted(ends, at, side="right"), num_stored - 1)
        weights = (num_stored * shares[rows] / ends[-1]) ** -self._settings.beta
        return rows, (weights / weights.max()).astype(np.float32)

    def update(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Sets what an update measured.

        Args:
            rows: ``[num]``; in all places where a row stands, `values` are the same.
            values: ``[num]``. Those that are not finite are left out, as their update was.
        """
        is_finite = np.isfinite(values)
        if not is_finite.any():
            return
        values = np.maximum(values[is_finite], LOWEST)
        self._values[rows[is_finite]] = values
        self._highest = max(self._highest, float(values.max()))

    def get_state(self, num_stored: int) -> dict[str, Any]:
        """Returns the priorities of the first `num_stored` rows, as plain values and arrays."""
        return {"values": self._values[:num_stored].copy(), "highest": self._highest}

    def set_state(self, num_stored: int, state: Mapping[str, Any] | None) -> None:
        """Goes on with what `get_state` returned; None: all rows count as new.

        A replay that drew uniformly until now has no priorities.
        """
        if state is None:
            self._values[:num_stored] = 1.0
        else:
            self._values[:num_stored] = state["values"]
            self._highest = float(state["highest"])


def episode_priorities(td_error: Tensor, mask: Tensor, eta: float) -> Tensor:
    """Returns ``eta max |td| + (1 - eta) mean |td|`` of each episode.

    Kapturowski et al. 2019, for sequences: the mean of a long one hides its large errors.

    Args:
        td_error: ``[B, T, k]``, 0 where `mask` is.
        mask: ``[B, T, k]``, 1 where there is an error.
        eta: 0.9 there.

    Returns:
        ``[B]``.
    """
    size = td_error.abs()
    mean = size.sum((1, 2)) / mask.sum((1, 2)).clamp(min=1.0)
    return eta * size.amax((1, 2)) + (1.0 - eta) * mean
