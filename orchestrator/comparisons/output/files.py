"""A comparison as data: a CSV file for each table, one JSON file with all, and marl-eval's.

Runs are named by their path from the report's folder, so that both can be moved together.

marl-eval (Gorsane et al. 2022, "Towards a Standardised Performance Evaluation Protocol for
Cooperative MARL") reads environment -> task -> algorithm -> run -> step -> metrics, each metric a
list with one number for each evaluation episode. Here a contestant is an algorithm, a run is named
by its seed, each subject's return is a metric, so is each of the simulation's own, and the
simulation is environment and task.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from muxrl.orchestrator.comparisons.findings.compared_runs import ComparedRun, point_at
from muxrl.orchestrator.comparisons.findings.contestants import Subject
from muxrl.orchestrator.comparisons.findings.findings import Findings
from muxrl.orchestrator.comparisons.output.tables import TABLE_NAMES, file_table
from muxrl.orchestrator.records.json_files import write_json, write_text
from muxrl.orchestrator.records.recorded_run import EvaluationPoint
from muxrl.orchestrator.reports.pages import from_folder

_FORMAT = 1


def write_files(found: Findings, folder: Path) -> None:
    """Writes a CSV file for each table, ``comparison.json`` and ``marl_eval.json``.

    Raises:
        OSError: the folder cannot be written to.
    """
    path_text = partial(from_folder, folder=folder)
    for name in TABLE_NAMES:
        if name == "matches" and found.head_to_head is None:
            continue
        columns, rows = file_table(found, name, path_text)
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            unknown = {k for k, v in row.items() if isinstance(v, float) and not math.isfinite(v)}
            writer.writerow(row | dict.fromkeys(unknown, ""))
        write_text(folder / f"{name}.csv", text.getvalue())
    write_json(folder / "comparison.json", _as_json(found, folder))
    write_json(folder / "marl_eval.json", marl_eval(found))


def _as_json(found: Findings, folder: Path) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "simulation": {"env": found.env, "kwargs": found.kwargs},
        "roles": found.roles,
        "contestants": {
            contestant.name: {
                "assignment": contestant.assignment,
                "played": contestant.played,
                "learns": contestant.learns,
                "runs": {run.seed: from_folder(run.path, folder) for run in contestant.runs},
            }
            for contestant in found.contestants
        },
        "budget": asdict(found.budget),
        "evaluated_actions": "sampled" if found.should_explore else "greedy",
        "first_episode_seed": found.first_seed,
        "headline": found.headline,
        "thresholds": found.thresholds,
        "measures": found.measures,
        "notes": found.notes,
        "tables": {
            name: file_table(found, name, partial(from_folder, folder=folder))[1]
            for name in TABLE_NAMES
            if name != "curves"
        },
    }


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
        values = subject.measured(point)
        name = "return" if subject.kind == "total" else f"return_{subject.kind}_{subject.name}"
        if subject.metric:
            name = subject.name
        metrics[re.sub(r"\W+", "_", name).lower()] = values[np.isfinite(values)].tolist()
    return metrics
