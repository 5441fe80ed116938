"""How long something took, again and again: counts over fixed bounds, as Prometheus wants them.

They are added to on the step path, so it takes one bisection and two additions, and no lock: only
the event loop's thread adds. Who reads in another thread may miss the newest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

BOUNDS_S = (
    *(2e-5, 3e-5, 5e-5, 7e-5),  # a small network in numpy
    *(float(f"{m}e{e}") for e in range(-4, 2) for m in (1, 1.5, 2, 3, 5, 7)),
    100.0,  # a long update, for which simulations wait
)
"""Upper bounds of the buckets, in seconds; whatever is longer is in one more. Each is at most 1.7
times the one before: by so much can a quantile be wrong at worst."""


class Latencies:
    """What was measured since the process began."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """How many were in each bucket alone."""
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Counts one more."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


def quantile(counts: Sequence[int], share: float) -> float | None:
    """Returns the seconds that this share of what was measured did not exceed, None of nothing.

    As in Prometheus's ``histogram_quantile``: what is in a bucket is taken to lie evenly between
    its bounds, and what is above the last bound at it.

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
