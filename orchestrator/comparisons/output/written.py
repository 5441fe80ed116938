"""Writes a comparison as data and as a page, and prints it on the terminal.

Data are a CSV file for each frame, one JSON file with all frames, and the payoffs of a head to head
of two roles as an array, which ``nashpy.Game(*np.load(...))`` and
``pyspiel.create_matrix_game(*np.load(...))`` take. Runs are named by their path relative to the
report's folder, so that both can be moved together. The page's texts are in ``templates/``, in a
file for each section, which gets its tables and pictures from `tables` and `figures`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from muxrl.orchestrator.comparisons.findings.by_parameter import first_values
from muxrl.orchestrator.comparisons.findings.contestants import versions_of
from muxrl.orchestrator.comparisons.findings.findings import Findings
from muxrl.orchestrator.comparisons.findings.frames import OF_HEAD_TO_HEAD, TABLE_NAMES, plain
from muxrl.orchestrator.comparisons.findings.head_to_head import RANDOM, CrossPlay
from muxrl.orchestrator.comparisons.output import tables
from muxrl.orchestrator.comparisons.output.methods import all_settings, methods, references
from muxrl.orchestrator.config import to_yaml
from muxrl.orchestrator.measure.subjects import Subject
from muxrl.orchestrator.reports.pages import from_folder, write_page
from muxrl.orchestrator.reports.plain_table import grid_table
from muxrl.orchestrator.reports.table import Grid
from muxrl.orchestrator.storage.json_files import write_json, write_text

_FORMAT = 1
_MIN_NAME = 16
"""Least width of names on the terminal, so that their words are not broken."""


def write_comparison(found: Findings, folder: Path) -> Path:
    """Writes all files of a comparison.

    These are a CSV file for each frame, ``comparison.json``, texts for a paper (``methods.md`` and
    ``references.bib``), and ``report.html``.

    Returns:
        The path of ``report.html``.

    Raises:
        OSError: the folder cannot be written to.
    """
    path_text = partial(from_folder, folder=folder)
    written: dict[str, Any] = {}
    for name in TABLE_NAMES:
        frame = plain(name, found.frames[name], path_text)
        if name != "curves":
            written[name] = frame.to_dict("records")
        if name not in OF_HEAD_TO_HEAD or found.head_to_head is not None:
            text = frame.to_csv(index=False, lineterminator="\n")
            write_text(folder / f"{name}.csv", text)
    write_json(folder / "comparison.json", {**_about(found, folder), "tables": written})
    write_text(folder / "methods.md", f"{methods(found)}\n\n{all_settings(found)}\n")
    write_text(folder / "references.bib", references(found))
    if found.head_to_head is not None:
        write_payoffs(found.head_to_head.by_label, folder)
    return _write_page(found, folder)


def write_payoffs(tables: Sequence[CrossPlay], folder: Path) -> None:
    """Writes ``payoffs.npy``: ``[2, players of the first role, players of the second role]``.

    It has the returns of both roles. It is not written for other numbers of roles.
    """
    if len(tables) == 2:
        first, second = tables
        cells = [
            [(first.cells[row, column], second.cells[column, row]) for column in second.players]
            for row in first.players
        ]
        means = [[[cell["return"].mean for cell in both] for both in row] for row in cells]
        np.save(folder / "payoffs.npy", np.moveaxis(np.array(means), -1, 0))


def _about(found: Findings, folder: Path) -> dict[str, Any]:
    def placed(settings: Mapping[str, Any]) -> dict[str, Any]:
        at = settings.get("checkpoint")
        return {**settings, **({"checkpoint": from_folder(Path(at), folder)} if at else {})}

    played = found.head_to_head.players if found.head_to_head else {}
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
        "players": {
            role: [{**one, "settings": placed(one["settings"])} for one in players]
            for role, players in played.items()
        },
    }


def _write_page(found: Findings, folder: Path) -> Path:
    # Imported here: matplotlib takes a second to load, and frames do not need it.
    from muxrl.orchestrator.comparisons.output import figures

    curves = figures.learning_curves(found)
    return write_page(
        folder,
        "page.html",
        __package__,
        found=found,
        sections=list(_sections(found, has_curves=bool(curves))),
        tables=tables,
        drawn=figures,
        curves=curves,
        below=tables.BELOW_MARK.strip(),
        baselines=baseline_caption(found),
        versions=versions_of(found.runs),
        configs={
            c.name: c.runs[0].changes_as_comments + to_yaml(c.runs[0].config)
            for c in found.contestants
        },
        methods=methods(found),
    )


def _sections(found: Findings, *, has_curves: bool) -> Iterator[dict[str, str]]:
    def section(anchor: str, title: str, template: str, role: str = "") -> dict[str, str]:
        return {"id": anchor, "title": title, "template": f"{template}.html", "role": role}

    yield section("settings", "Settings and versions", "settings")
    if len(found.frames["learners"]):
        yield section("learned", "Who has learned", "learned")
    yield section("side-by-side", "Returns side by side", "returns")
    if len(found.frames["parameters"]):
        yield section("parameters", "By the parameters of episodes", "parameters")
    if has_curves:
        yield section("learning", "Learning", "learning")
    for place, role in enumerate(found.roles):
        if role in set(found.frames["roles"].role):
            yield section(f"role-{place}", f"Who plays {role}", "role", role)
    if found.head_to_head is not None:
        yield section("head-to-head", "Head to head", "head_to_head")
    yield section("runs", "All runs", "runs")


def baseline_caption(found: Findings) -> str:
    """Returns a sentence on the rows of baselines, which are over episodes; "" without any."""
    rows = found.frames["standings"]
    played = rows[rows.num_runs == 0]
    if played.empty:
        return ""
    num = played.num_episodes.iloc[0]
    values = first_values(found.runs)
    of = f" with {values}" if values else ""
    return f"Baselines: mean and interval over {num} episodes{of}; no policy in them is trained."


def print_comparison(found: Findings, console: Console | None = None) -> None:
    """Prints the main results, the contestants' returns, the head to head, and notes."""
    console = console or Console()
    for sentence in found.headline:
        console.print(Text(sentence), style="bold")

    def returns(subjects: Sequence[Subject]) -> Grid:
        return tables.returns(found, subjects, _heading)

    of_runs = "interquartile mean over seeds"
    after = f"After {found.compared_after} env steps of training." if found.compared_after else ""
    title, caption = f"Side by side: {of_runs}", f"{after} {baseline_caption(found)}".strip()
    console.print(grid_table(returns(found.main_subjects), title, caption, min_text=_MIN_NAME))
    folded = [(f"Metrics: {of_runs}", returns(found.metrics))] if found.metrics else []
    for name, subject, grid in tables.by_parameter(found):
        folded.append((f"Return of {subject.name} by {name}: {of_runs}", grid))
    for title, grid in folded:
        console.print(grid_table(grid, title, min_text=_MIN_NAME, folds=True))
    if (played := found.head_to_head) is not None:
        among = (RANDOM,) if played.snapshots else ()  # only the page has room for all others
        for cross in played.by_label:
            title = f"Head to head, return of {cross.role}: interquartile mean over pairs of seeds"
            console.print(
                grid_table(tables.cross_play(played, cross, among=among), title, folds=True)
            )
    for note in found.notes:
        console.print(Text(f"Note: {note}.", style="yellow"))


def _heading(subject: Subject) -> str:
    how = "sum" if subject.kind == "total" else "mean"
    return subject.name + (f"\n{how} of {len(subject.agents)}" if len(subject.agents) > 1 else "")
