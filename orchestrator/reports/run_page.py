"""A run's report as one HTML file: what was found, table, picture, settings and versions."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from muxrl.orchestrator.records.json_files import write_text
from muxrl.orchestrator.reports.against_random import Verdict
from muxrl.orchestrator.reports.pages import page_environment
from muxrl.orchestrator.reports.plain_table import MISSING, interval, signed_interval
from muxrl.orchestrator.reports.results import Report, ServerResult
from muxrl.orchestrator.reports.table import Column, Grid, Table

_CLAIMS = {
    Verdict.BETTER: "better than random agents in its place",
    Verdict.WORSE: "worse than random agents in its place",
    Verdict.UNCLEAR: "not distinguishable from random agents in its place",
}
_VERSIONS = ("muxrl", "python", "ray", "torch", "git_commit")


def write_run_page(report: Report, path: Path, picture: Path, run_dirs: Sequence[Path]) -> None:
    """Writes the page.

    Args:
        report: of one run, or of several seeds.
        path: the file.
        picture: the PNG that goes into it.
        run_dirs: of the runs, from the first of which come settings and versions.

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
        picture=base64.b64encode(picture.read_bytes()).decode(),
        config=_text_of(run_dirs[0] / "config.yaml"),
        versions=_versions(run_dirs[0] / "versions.json"),
    )
    write_text(path, page)


def sentences(report: Report) -> Iterator[str]:
    """Yields for each server that learns what its evaluation shows; of several seeds, how many."""
    for server in report.servers:
        if not server.learns:
            continue
        who = f"{server.server_id} ({server.algorithm})"
        final = server.final
        if not server.has_updates:
            yield f"{who} made no update, so there is nothing to judge."
        elif final is None:
            yield f"{who} was never evaluated."
        elif final.advantage is None or final.verdict is None:
            yield f"{who} returns {interval(final.learned)}; random in its place was not measured."
        else:
            seeds = len(report.seeds)
            above = f", {final.num_seeds_above} of {seeds} seeds above" if seeds > 1 else ""
            yield f"{who} is {_CLAIMS[final.verdict]}: {signed_interval(final.advantage)}{above}."


def servers_grid(report: Report) -> Grid:
    """Returns a row for each server."""

    def verdict(server: ServerResult) -> str:
        if not server.learns:
            return "does not learn"
        if not server.has_updates:
            return "made no update"
        return str(server.final.verdict or MISSING) if server.final else MISSING

    table = Table(
        (
            Column("server_id", "server", css="text"),
            Column("algorithm", css="text"),
            Column("agents", text=lambda s: ", ".join(s.agents), css="wrap"),
            Column(
                "env_steps",
                "env steps",
                text=lambda s: f"{s.env_steps:,.0f}" if s.learns else MISSING,
            ),
            Column("train_return", "train return"),
            Column("learned", "evaluated return", lambda s: s.final and s.final.learned),
            Column("random", "random in its place", lambda s: s.final and s.final.random),
            Column(
                "advantage",
                value=lambda s: s.final and s.final.advantage,
                text=lambda s: (
                    signed_interval(s.final.advantage) if s.final and s.final.advantage else MISSING
                ),
            ),
            Column("verdict", value=verdict, css="text"),
        ),
        report.servers,
    )
    return table.grid([column.name for column in table.columns])


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _versions(path: Path) -> dict[str, str]:
    try:
        found = json.loads(_text_of(path) or "{}")
    except ValueError:
        found = {}
    return {name: found[name] for name in _VERSIONS if found.get(name)}
