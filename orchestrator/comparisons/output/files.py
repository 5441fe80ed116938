"""A comparison as data: a CSV file for each table, and one JSON file with all estimates.

Runs are named by their path from the report's folder, so that both can be moved together.
"""

from __future__ import annotations

import csv
import io
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from muxrl.orchestrator.comparisons.findings.findings import Findings
from muxrl.orchestrator.comparisons.output.marl_eval import marl_eval
from muxrl.orchestrator.comparisons.output.tables import TABLE_NAMES, file_table
from muxrl.orchestrator.records.json_files import write_json, write_text

_FORMAT = 1


def write_files(found: Findings, folder: Path) -> None:
    """Writes a CSV file for each table, ``comparison.json`` and ``marl_eval.json``.

    Raises:
        OSError: the folder cannot be written to.
    """
    for name in TABLE_NAMES:
        if name == "matches" and found.head_to_head is None:
            continue
        columns, rows = file_table(found, name)
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({key: _csv_value(value, folder) for key, value in row.items()})
        write_text(folder / f"{name}.csv", text.getvalue())
    write_json(folder / "comparison.json", _as_json(found, folder))
    write_json(folder / "marl_eval.json", marl_eval(found))


def from_folder(path: Path, folder: Path) -> str:
    """Returns a run's path from the report's folder."""
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()


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
        "thresholds": found.thresholds,
        "notes": found.notes,
        "tables": {
            name: [
                {
                    key: from_folder(value, folder) if isinstance(value, Path) else value
                    for key, value in row.items()
                }
                for row in file_table(found, name)[1]
            ]
            for name in TABLE_NAMES
            if name != "curves"
        },
    }


def _csv_value(value: Any, folder: Path) -> Any:
    if isinstance(value, Path):
        return from_folder(value, folder)
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    return value
