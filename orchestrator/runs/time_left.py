"""How long until the first of a run's stop conditions holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class StopCondition:
    """Something that grows until the run stops.

    Time itself is one: ``StopCondition(time_s, limit_s, per_s=1.0)``.
    """

    now: float
    """How much there is."""
    limit: float
    """How much ends the run."""
    per_s: float
    """How much a second adds, at the present rate."""


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
