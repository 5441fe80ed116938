"""Histograms of durations: counts between fixed bounds, in the form that Prometheus wants.

Durations are added on the step path, so that takes one bisection and two additions, and no lock:
only the event loop's thread adds. A reader in another thread may miss the newest ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

BOUNDS_S = (
    *(2e-5, 3e-5, 5e-5, 7e-5),  # a small network in numpy
    *(float(f"{m}e{e}") for e in range(-4, 2) for m in (1, 1.5, 2, 3, 5, 7)),
    100.0,  # a long update, for which simulations wait
)
"""Upper bounds of the buckets, in seconds; one more bucket has everything longer. Each bound is at
most 1.7 times the one before, which is the largest possible error of a quantile."""


class Latencies:
    """The durations since the process began."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """Number of durations in each single bucket."""
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Counts a duration."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Returns the duration that this share of all durations did not exceed, None without any.

    As in Prometheus's ``histogram_quantile``, durations are taken to lie evenly between the bounds
    of their bucket, and durations above the last bound to lie at it.

    Args:
        counts: ``[len(BOUNDS_S) + 1]``, one for each bucket.
        share: 0.5 for the median.
    """
    rank = share * sum(counts)
    if rank <= 0:
        return None
    low_s = 0.0
    for bound_s, count in zip(BOUNDS_S, counts, strict=False):
        if count >= rank:
            return low_s + (bound_s - low_s) * rank / count
        rank -= count
        low_s = bound_s
    return low_s
