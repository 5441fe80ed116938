"""A comparison as data: a CSV file for each frame, and one JSON file with all.

And the payoffs of a head to head of two roles as an array, which is what
``nashpy.Game(*np.load(...))`` and ``pyspiel.create_matrix_game(*np.load(...))`` take.
Runs are named by their path from the report's folder, so that both can be moved together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from muxrl.orchestrator.comparisons.findings.findings import Findings
from muxrl.orchestrator.comparisons.findings.frames import OF_HEAD_TO_HEAD, TABLE_NAMES, plain
from muxrl.orchestrator.comparisons.findings.head_to_head import CrossPlay
from muxrl.orchestrator.comparisons.output.methods import all_settings, methods, references
from muxrl.orchestrator.reports.pages import from_folder
from muxrl.orchestrator.storage.json_files import write_json, write_text

_FORMAT = 1


def write_files(found: Findings, folder: Path) -> None:
    """Writes a CSV file for each frame, ``comparison.json``, and what a paper says of how it was
    made: ``methods.md`` and ``references.bib``.

    Raises:
        OSError: the folder cannot be written to.
    """
    from pandas import DataFrame

    path_text = partial(from_folder, folder=folder)
    tables: dict[str, Any] = {}
    for name in TABLE_NAMES:
        columns, rows = plain(name, found.frames[name], path_text)
        if name != "curves":
            tables[name] = rows
        if name not in OF_HEAD_TO_HEAD or found.head_to_head is not None:
            text = DataFrame(rows, None, columns, object).to_csv(index=False, lineterminator="\n")
            write_text(folder / f"{name}.csv", text)
    write_json(folder / "comparison.json", {**_about(found, folder), "tables": tables})
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


def _about(found: Findings, folder: Path) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "simulation": {"env": found.simulation.env, "kwargs": found.simulation.kwargs},
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
    }
