"""A comparison as data: a CSV file for each table, and one JSON file with all.

And the payoffs of a head to head of two roles as an array, which is what
``nashpy.Game(*np.load(...))`` and ``pyspiel.create_matrix_game(*np.load(...))`` take.
Runs are named by their path from the report's folder, so that both can be moved together.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from muxrl.orchestrator.comparisons.findings.findings import Findings
from muxrl.orchestrator.comparisons.findings.head_to_head import CrossPlay
from muxrl.orchestrator.comparisons.output.methods import all_settings, methods, references
from muxrl.orchestrator.comparisons.output.tables import OF_HEAD_TO_HEAD, TABLE_NAMES, file_table
from muxrl.orchestrator.reports.pages import from_folder
from muxrl.orchestrator.storage.json_files import write_json, write_text

_FORMAT = 1


def write_files(found: Findings, folder: Path) -> None:
    """Writes a CSV file for each table, ``comparison.json``, and what a paper says of how it was
    made: ``methods.md`` and ``references.bib``.

    Raises:
        OSError: the folder cannot be written to.
    """
    path_text = partial(from_folder, folder=folder)
    for name in TABLE_NAMES:
        if name in OF_HEAD_TO_HEAD and found.head_to_head is None:
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
    write_text(folder / "methods.md", f"{methods(found)}\n\n{all_settings(found)}\n")
    write_text(folder / "references.bib", references(found))
    if found.head_to_head is not None:
        write_payoffs(found.head_to_head.by_label, folder)


def write_payoffs(tables: Sequence[CrossPlay], folder: Path) -> None:
    """Writes ``payoffs.npy`` of two roles: ``[2, players of the first, players of the second]``.

    It has both roles' returns. Of other numbers of roles nothing is written.
    """
    if len(tables) == 2:
        first, second = tables
        cells = [
            [(first.cells[row, column], second.cells[column, row]) for column in second.players]
            for row in first.players
        ]
        means = [[[cell.score.mean for cell in both] for both in row] for row in cells]
        np.save(folder / "payoffs.npy", np.moveaxis(np.array(means), -1, 0))


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
                "runs": {run.config.seed: from_folder(run.path, folder) for run in contestant.runs},
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
