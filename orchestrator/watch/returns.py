"""Evaluated returns of a run that goes on: for each role of each server, and with random actions in
its place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from muxrl.orchestrator.measure.against_random import AgainstRandom, against_random
from muxrl.orchestrator.measure.statistics import Estimate
from muxrl.orchestrator.measure.subjects import Measured, Subject
from muxrl.orchestrator.records.conditions import Condition, untrained
from muxrl.orchestrator.records.evaluations import AS_LEARNED, EvaluationPoint, EvaluationSeries
from muxrl.orchestrator.records.plan import Role
from muxrl.orchestrator.records.rows import EvaluationRow
from muxrl.orchestrator.records.thinned import Thinned

MOST_EVALUATIONS = 150


class EvaluatedReturns:
    """The evaluations, from their rows, one for each condition."""

    def __init__(self, roles: Sequence[Role], *, is_external: bool = False) -> None:
        self._series = EvaluationSeries(most=1, is_external=is_external)
        self._roles = roles

    def add(self, row: EvaluationRow) -> None:
        """Adds a row; those of another rule of acting than the newest are left out."""
        if row.should_explore != self._series.should_explore:
            self._curves = {role: Thinned(most=MOST_EVALUATIONS) for role in self._roles}
        self._series.add(row)
        (point,), (rows,) = self._series.points, self._series.rows.values()
        server_id = Condition.of_row(row).server_id
        for role, curve in self._curves.items():
            if server_id not in (None, role.server_id):
                continue
            subject = Subject("role", role.name, role.agents)
            in_place = Condition(role.server_id, _side(role, point)).key or ""
            episodes = {
                who: subject.returns(rows[who].returns)
                for who in (AS_LEARNED, in_place, untrained(in_place))
                if who in rows
            }
            if measured := Measured.of(point, episodes, in_place):
                curve.add((point.env_steps, against_random([measured])))

    def shown(self, role: Role) -> dict[str, Any]:
        """Returns for the page: points ``(env_steps, mean, low, high)``, and of the last evaluation
        the advantage, and untrained agents' ``(mean, low, high)``.

        Ends of intervals, over episodes, are None where there are too few of them for one.

        Args:
            role: whose.
        """
        curve = self._curves[role].points if self._series.should_explore is not None else ()
        measured: list[AgainstRandom] = [point for _, point in curve]
        found = next((m for m in reversed(measured) if m.random is not None), None)
        return {
            "evaluated": [(m.env_steps, *_ends(m.learned)) for m in measured],
            "random": [(m.env_steps, *_ends(m.random)) for m in measured if m.random],
            "untrained": _ends(found.untrained) if found and found.untrained else None,
            "advantage": _ends(found.advantage) if found and found.advantage else None,
            "verdict": str(found.verdict) if found else "",
            "num_episodes": measured[-1].num_episodes if measured else 0,
        }


def _side(role: Role, point: EvaluationPoint) -> str:
    """Returns the side that the role's agents are of their server's; "": they are none."""
    sides = point.sides.get(role.server_id, {})
    return next((s for s, agents in sides.items() if set(agents) == set(role.agents)), "")


def _ends(estimate: Estimate) -> tuple[float | None, ...]:
    return tuple(
        value if math.isfinite(value) else None
        for value in (estimate.mean, estimate.low, estimate.high)
    )
