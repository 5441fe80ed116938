"""A comparison as data: CSV files, one JSON file with all estimates, and marl-eval's JSON.

marl-eval (Gorsane et al. 2022, "Towards a Standardised Performance Evaluation Protocol for
Cooperative MARL") reads environment -> task -> algorithm -> run -> step -> metrics, each metric a
list with one number for each evaluation episode. Here a contestant is an algorithm, a run's seed
its name, each subject's return a metric, and the simulation environment and task.

Runs are named by where they lie from the report's folder, so that both can be moved together.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from muxrl.orchestrator.comparisons.comparison import Comparison
from muxrl.orchestrator.comparisons.roles import Subject
from muxrl.orchestrator.comparisons.rows import TABLES
from muxrl.orchestrator.comparisons.side_by_side import point_at
from muxrl.orchestrator.comparisons.sources import ComparedRun
from muxrl.orchestrator.records.json_files import write_json, write_text
from muxrl.orchestrator.records.recorded_run import EvaluationPoint

_FORMAT = 1


def write_files(comparison: Comparison, folder: Path) -> None:
    """Writes a CSV file for each table, ``comparison.json`` and ``marl_eval.json``.

    Raises:
        OSError: the folder cannot be written to.
    """
    for name, (columns, rows) in TABLES.items():
        if name == "matches" and comparison.head_to_head is None:
            continue
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        for row in rows(comparison):
            writer.writerow({key: _cell(value, folder) for key, value in row.items()})
        write_text(folder / f"{name}.csv", text.getvalue())
    write_json(folder / "comparison.json", as_json(comparison, folder))
    write_json(folder / "marl_eval.json", marl_eval(comparison))


def as_json(comparison: Comparison, folder: Path) -> dict[str, Any]:
    """All that was found, for ``comparison.json`` in this folder."""
    return {
        "format": _FORMAT,
        "simulation": {"env": comparison.env, "kwargs": comparison.kwargs},
        "roles": comparison.roles,
        "contestants": {
            contestant.name: {
                "assignment": contestant.assignment,
                "played": contestant.played,
                "learns": contestant.learns,
                "runs": {run.seed: from_folder(run.path, folder) for run in contestant.runs},
            }
            for contestant in comparison.contestants
        },
        "budget": asdict(comparison.budget),
        "evaluated_actions": "sampled" if comparison.should_explore else "greedy",
        "first_episode_seed": comparison.first_seed,
        "thresholds": comparison.thresholds,
        "notes": comparison.notes,
        "tables": {
            name: [
                {
                    key: from_folder(value, folder) if isinstance(value, Path) else value
                    for key, value in row.items()
                }
                for row in rows(comparison)
            ]
            for name, (_, rows) in TABLES.items()
            if name != "curves"
        },
    }


def from_folder(path: Path, folder: Path) -> str:
    """Returns where a run lies, seen from the report's folder."""
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()


def marl_eval(comparison: Comparison) -> dict[str, Any]:
    """The runs in marl-eval's shape."""
    environment, _, task = comparison.env.rpartition(":")
    return {
        environment or comparison.env: {
            task or "task": {
                contestant.name: {
                    f"seed_{run.seed}": _steps(comparison, run) for run in contestant.runs
                }
                for contestant in comparison.contestants
            }
        }
    }


def _steps(comparison: Comparison, run: ComparedRun) -> dict[str, Any]:
    last = point_at(run, comparison.budget)
    points = [p for p in run.points if p.env_steps <= last.env_steps]
    steps: dict[str, Any] = {
        f"step_{number}": {
            "step_count": point.env_steps,
            **({"elapsed_time": point.time_s} if math.isfinite(point.time_s) else {}),
            **_metrics(comparison.subjects, point),
        }
        for number, point in enumerate(points)
    }
    steps["absolute_metrics"] = _metrics(comparison.subjects, last)
    return steps


def _metrics(subjects: tuple[Subject, ...], point: EvaluationPoint) -> Mapping[str, list[float]]:
    metrics = {}
    for subject in subjects:
        values = subject.returns(point.returns[None])
        name = "return" if subject.kind == "total" else f"return_{subject.kind}_{subject.name}"
        metrics[re.sub(r"\W+", "_", name).lower()] = values[np.isfinite(values)].tolist()
    return metrics


def _cell(value: Any, folder: Path) -> Any:
    if isinstance(value, Path):
        return from_folder(value, folder)
    if isinstance(value, float) and not np.isfinite(value):
        return ""
    return value
