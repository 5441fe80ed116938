"""A comparison's runs in the shape that marl-eval reads.

marl-eval (Gorsane et al. 2022, "Towards a Standardised Performance Evaluation Protocol for
Cooperative MARL") reads environment -> task -> algorithm -> run -> step -> metrics, each metric a
list with one number for each evaluation episode. Here a contestant is an algorithm, a run is named
by its seed, each subject's return is a metric, and the simulation is environment and task.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from muxrl.orchestrator.comparisons.findings.budget import point_at
from muxrl.orchestrator.comparisons.findings.compared_runs import ComparedRun
from muxrl.orchestrator.comparisons.findings.findings import Findings
from muxrl.orchestrator.comparisons.findings.roles import Subject
from muxrl.orchestrator.records.recorded_run import EvaluationPoint


def marl_eval(found: Findings) -> dict[str, Any]:
    """Returns the runs in marl-eval's shape."""
    environment, _, task = found.env.rpartition(":")
    return {
        environment or found.env: {
            task or "task": {
                contestant.name: {f"seed_{run.seed}": _steps(found, run) for run in contestant.runs}
                for contestant in found.contestants
            }
        }
    }


def _steps(found: Findings, run: ComparedRun) -> dict[str, Any]:
    last = point_at(run, found.budget)
    points = [p for p in run.points if p.env_steps <= last.env_steps]
    steps: dict[str, Any] = {
        f"step_{number}": {
            "step_count": point.env_steps,
            **({"elapsed_time": point.time_s} if math.isfinite(point.time_s) else {}),
            **_metrics(found.subjects, point),
        }
        for number, point in enumerate(points)
    }
    steps["absolute_metrics"] = _metrics(found.subjects, last)
    return steps


def _metrics(subjects: tuple[Subject, ...], point: EvaluationPoint) -> Mapping[str, list[float]]:
    metrics = {}
    for subject in subjects:
        values = subject.returns(point.returns[None])
        name = "return" if subject.kind == "total" else f"return_{subject.kind}_{subject.name}"
        metrics[re.sub(r"\W+", "_", name).lower()] = values[np.isfinite(values)].tolist()
    return metrics
