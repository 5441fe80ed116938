"""A run's report as one HTML file: what was found, table, picture, settings and versions."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from pathlib import Path

from muxrl.orchestrator.measure.against_random import AgainstRandom, Verdict
from muxrl.orchestrator.measure.number_text import interval, signed_interval
from muxrl.orchestrator.measure.results import Report
from muxrl.orchestrator.reports.pages import page_environment
from muxrl.orchestrator.reports.plots import metrics_key
from muxrl.orchestrator.reports.run_tables import (
    METRIC_CAPTION,
    learners_grid,
    metrics_grid,
    servers_grid,
)
from muxrl.orchestrator.storage.json_files import write_text
from muxrl.orchestrator.storage.versions import SHOWN, versions_used

_CLAIMS = {
    Verdict.BETTER: "better than random agents in its place",
    Verdict.BETTER_THAN_BOTH: "better than random agents and than untrained ones in its place",
    Verdict.NOT_THAN_UNTRAINED: (
        "better than random agents in its place, but not than untrained ones"
    ),
    Verdict.WORSE: "worse than random agents in its place",
    Verdict.UNCLEAR: "not distinguishable from random agents in its place",
}


def write_run_page(report: Report, picture: bytes, path: Path, run_dirs: Sequence[Path]) -> None:
    """Writes the page.

    Args:
        report: of one run, or of several seeds.
        picture: as `learning_png` draws it.
        path: the file.
        run_dirs: of the runs, from the first of which come settings, versions, and what learners
            measured.

    Raises:
        OSError: the folder cannot be written to.
    """
    template = page_environment(path.parent).get_template("run.html")
    page = template.render(
        title=", ".join(report.names) if len(report.names) < 4 else f"{len(report.names)} seeds",
        report=report,
        sentences=list(sentences(report)),
        notes=report.notes,
        grid=servers_grid(report),
        metrics=metrics_grid(report) if report.metrics else None,
        metrics_caption=METRIC_CAPTION,
        learners=learners_grid(run_dirs[0]),
        picture_key=metrics_key(report),
        picture=base64.b64encode(picture).decode(),
        config=_text_of(run_dirs[0] / "config.yaml"),
        versions=_versions(run_dirs[0]),
    )
    write_text(path, page)


def sentences(report: Report) -> Iterator[str]:
    """Yields for each server that learns what its evaluation shows; of several seeds, how many."""
    for server in report.servers:
        if not server.learns:
            continue
        who = f"{server.server_id} ({server.algorithm})"
        if not server.has_updates:
            yield f"{who} made no update, so there is nothing to judge."
        elif server.final is None or not server.plays_itself:
            yield _sentence(who, server.final, report)
        elif not server.sides:
            yield f"{who} plays itself, and was not judged side by side."
        else:
            for side in server.sides:
                name = f"{server.server_id}/{side.name} ({server.algorithm})"
                yield _sentence(name, side.final, report)


def _sentence(who: str, final: AgainstRandom | None, report: Report) -> str:
    if final is None:
        return f"{who} was never evaluated."
    num_seeds, over = len(report.seeds), f"over {report.interval_unit}"
    if final.advantage is None or final.verdict is None:
        return (
            f"{who} returns {interval(final.learned)} {over}; random in its place was not measured."
        )
    above = f", {final.num_seeds_above} of {num_seeds} above" if num_seeds > 1 else ""
    return f"{who} is {_CLAIMS[final.verdict]}: {signed_interval(final.advantage)} {over}{above}."


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _versions(run_dir: Path) -> dict[str, str]:
    """By name; behind the newest those with which the run was begun, or resumed, before."""
    used = versions_used(run_dir)
    return {name: ", before ".join(used[name]) for name in SHOWN if name in used}
