"""Evaluated returns of a run that goes on: for each role of each server, and with random actions in
its place."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from muxrl.orchestrator.measure.against_random import AgainstRandom, Measured, compared
from muxrl.orchestrator.measure.statistics import NUM_RESAMPLES, Estimate
from muxrl.orchestrator.records.conditions import Condition
from muxrl.orchestrator.records.plan import Role
from muxrl.orchestrator.records.rows import EvaluationRow
from muxrl.orchestrator.records.series import EvaluationPoint, EvaluationSeries
from muxrl.orchestrator.records.thinned import Thinned

_NUM_RESAMPLES = 2_000  # as for the bands of the report's picture
MOST_EVALUATIONS = 150


class EvaluatedReturns:
    """The evaluations, from their rows, one for each condition."""

    def __init__(self, roles: Sequence[Role], *, shares_resets: bool = True) -> None:
        self._shares_resets = shares_resets
        self._series = EvaluationSeries(most=1)
        self._roles = roles

    def add(self, row: EvaluationRow) -> None:
        """Adds a row; those of another rule of acting than the newest are left out."""
        if row.should_explore != self._series.should_explore:
            self._curves = {role: Thinned(most=MOST_EVALUATIONS) for role in self._roles}
        point = self._series.add(row)
        server_id = Condition.of_row(row).server_id
        for role, curve in self._curves.items():
            if server_id not in (None, role.server_id):
                continue
            if measured := Measured.of(point, role.server_id, role.agents, _side(role, point)):
                curve.add((point.env_steps, _Shown(measured, self._shares_resets)))

    def shown(self, role: Role, until_s: float) -> dict[str, Any]:
        """Returns for the page: points ``(env_steps, mean, low, high)``, and of the last evaluation
        the advantage, and untrained agents' ``(mean, low, high)``.

        Ends of intervals are None where there are too few episodes for one, or not yet computed.

        Args:
            role: whose.
            until_s: by the monotonic clock; intervals that are not computed by then are left for
                the next time, the newest point's excepted.
        """
        curve = self._curves[role].points if self._series.should_explore is not None else ()
        measured: list[_Shown] = [point for _, point in curve]
        for point in reversed(measured):
            if point.estimate is None and (point is measured[-1] or time.monotonic() < until_s):
                point.compute(NUM_RESAMPLES if point is measured[-1] else _NUM_RESAMPLES)
        last = next((m for m in reversed(measured) if m.measured.random is not None), None)
        found = last.estimate if last else None
        return {
            "evaluated": [m.ends("learned") for m in measured],
            "random": [m.ends("random") for m in measured if m.measured.random is not None],
            "untrained": _ends(found.untrained) if found and found.untrained else None,
            "advantage": _ends(found.advantage) if found and found.advantage else None,
            "verdict": str(found.verdict) if found else "",
            "num_episodes": measured[-1].num_episodes if measured else 0,
            "has_more": any(m.estimate is None for m in measured),
        }


@dataclass
class _Shown:
    """One evaluation of a role; intervals take tens of milliseconds, so they come later."""

    measured: Measured
    shares_resets: bool
    estimate: AgainstRandom | None = None

    @property
    def num_episodes(self) -> int:
        return int(np.isfinite(self.measured.learned).sum())

    def compute(self, num_resamples: int) -> None:
        how = {"shares_resets": self.shares_resets, "num_resamples": num_resamples}
        self.estimate = compared([self.measured], **how)

    def ends(self, how: Literal["learned", "random"]) -> tuple[float | None, ...]:
        """Returns ``(env_steps, mean, low, high)`` of what was measured."""
        if self.estimate:
            return self.measured.env_steps, *_ends(getattr(self.estimate, how))
        mean = float(np.nanmean(getattr(self.measured, how)))
        return self.measured.env_steps, mean, None, None


def _side(role: Role, point: EvaluationPoint) -> str:
    """Returns the side that the role's agents are of their server's; "": they are none."""
    sides = point.sides.get(role.server_id, {})
    return next((s for s, agents in sides.items() if set(agents) == set(role.agents)), "")


def _ends(estimate: Estimate) -> tuple[float | None, ...]:
    return tuple(
        value if math.isfinite(value) else None
        for value in (estimate.mean, estimate.low, estimate.high)
    )
