"""Writes a report from the records of runs, and prints it.

It writes ``summary.json``, ``summary.md``, a picture, and ``report.html`` with all of these, also
for a run that was interrupted, crashed, or was never evaluated. On the terminal no word of the
table is broken. In a report on several seeds, settings, versions, and the numbers of learners are
those of the first run.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from muxrl.orchestrator.measure.results import Report, results_of
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.reports.pages import write_page
from muxrl.orchestrator.reports.plain_table import broken, grid_table
from muxrl.orchestrator.reports.run_picture import learning_png, metrics_key
from muxrl.orchestrator.reports.run_tables import (
    METRIC_CAPTION,
    learners_grid,
    metrics_grid,
    servers_grid,
    servers_stacked,
)
from muxrl.orchestrator.reports.table import markdown
from muxrl.orchestrator.storage.json_files import write_bytes, write_json, write_text
from muxrl.orchestrator.storage.versions import SHOWN


def write_report(run_directory: RunDirectory) -> Report:
    """Writes ``summary.json``, ``summary.md``, ``plots/learning.png`` and ``report.html`` of a run.

    Raises:
        NotARunDirectory: the folder has no ``plan.json`` that can be read.
        MalformedMetrics: a metrics file is broken elsewhere than in its last line.
        OSError: the folder cannot be written to.
    """
    report = results_of([RecordedRun.read(run_directory.path)])
    _write(report, run_directory.path, "plots/learning.png")
    return report


def combine_runs(paths: Sequence[Path], out: Path, *, over_episodes: bool = False) -> Report:
    """Writes the report on several seeds into `out`, with the picture as ``learning.png``.

    Args:
        paths: the run directories, which differ in nothing but the seed.
        out: a folder; made if absent.
        over_episodes: whether intervals are over episodes of these policies, instead of over
            seeds.

    Raises:
        ValueError: there is no path.
        DifferentRuns: the runs differ in more than the seed.
        NotARunDirectory, MalformedMetrics, OSError: as `write_report`.
    """
    report = results_of([RecordedRun.read(path) for path in paths], over_episodes=over_episodes)
    out.mkdir(parents=True, exist_ok=True)
    _write(report, out, "learning.png")
    return report


def _write(report: Report, folder: Path, picture_file: str) -> None:
    write_json(folder / "summary.json", report.to_dict())
    write_text(folder / "summary.md", _markdown(report, picture_file))
    # The picture is written last, as it is the largest: on a full disk the tables may still fit.
    picture = learning_png(report)
    (folder / picture_file).parent.mkdir(exist_ok=True)
    write_bytes(folder / picture_file, picture)
    first = report.runs[0]
    config = first.path / "config.yaml"
    write_page(
        folder,
        "run.html",
        title=", ".join(report.names) if len(report.names) < 4 else f"{len(report.names)} seeds",
        report=report,
        sentences=report.headline,
        notes=report.notes,
        grid=servers_grid(report),
        metrics=metrics_grid(report) if report.metrics else None,
        metrics_caption=METRIC_CAPTION,
        learners=learners_grid(first.path),
        picture_key=metrics_key(report),
        picture=base64.b64encode(picture).decode(),
        config=first.changes_as_comments + config.read_text(encoding="utf-8")
        if config.is_file()
        else "",
        # The newest version, then those with which the run was started or resumed before.
        versions={s: ", before ".join(first.versions[s]) for s in SHOWN if s in first.versions},
    )


def title_of(report: Report) -> str:
    """Returns the title: the name of the run, or how many seeds, and the assignment."""
    name = report.names[0] if len(report.names) == 1 else f"{len(report.names)} seeds"
    return f"{name}: {report.assignment}"


def _markdown(report: Report, picture: str) -> str:
    parts = [
        f"# {title_of(report)}",
        markdown(servers_grid(report)),
        report.caption,
        *([markdown(metrics_grid(report)), METRIC_CAPTION] if report.metrics else []),
        *(f"**Note:** {note}." for note in report.notes),
        f"![Learning curves]({picture})",
        metrics_key(report),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def print_report(report: Report, console: Console | None = None, hidden_metrics: str = "") -> None:
    """Prints the tables, their captions and notes; see `run_experiment`."""
    console = console or Console()
    if hidden_metrics:
        shown = tuple(m for m in report.metrics if not m.name.startswith(hidden_metrics))
        report = dataclasses.replace(report, metrics=shown)
    # The title is not the table's: the table may be narrower than the terminal.
    console.print(Text("\n".join(broken(title_of(report), console.width)), style="bold"))
    console.print(grid_table(servers_stacked(report), width=console.width))
    console.print(Text(report.caption, style="italic"))
    if report.metrics:
        console.print(grid_table(metrics_grid(report)))
        console.print(Text(METRIC_CAPTION, style="italic"))
    for note in report.notes:
        console.print(Text(f"Note: {note}.", style="yellow"))
