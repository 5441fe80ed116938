"""How long until the first of a run's stop conditions holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class StopCondition:
    """A quantity that grows until it ends the run.

    Time itself is one: ``StopCondition(time_s, limit_s, per_s=1.0)``.
    """

    now: float
    """Its value."""
    limit: float
    """The value that ends the run."""
    per_s: float
    """By how much it grows in a second, at the present rate."""


def time_left_s(conditions: Iterable[StopCondition]) -> float | None:
    """Returns the seconds until the first condition holds at the present rate, 0.0 if one does now.

    None if no condition gets nearer.
    """
    times: list[float] = []
    for condition in conditions:
        missing = condition.limit - condition.now
        if missing <= 0:
            return 0.0
        if condition.per_s > 0:
            times.append(missing / condition.per_s)
    return min(times, default=None)
