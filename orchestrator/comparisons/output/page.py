"""A comparison for people: one HTML file that needs no other, and a summary on the terminal.

What the page says is in ``templates/``, a file for each section; here the tables and figures that
each section shows are put together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from muxrl.orchestrator.comparisons.findings.contestants import versions_of
from muxrl.orchestrator.comparisons.findings.findings import Findings
from muxrl.orchestrator.comparisons.findings.head_to_head import RANDOM, HeadToHead
from muxrl.orchestrator.comparisons.findings.role_by_role import once
from muxrl.orchestrator.comparisons.output import tables
from muxrl.orchestrator.comparisons.output.figures import (
    final_returns,
    learning_curves,
    payoff_picture,
    performance_profiles,
    rating_curves,
)
from muxrl.orchestrator.comparisons.output.methods import methods
from muxrl.orchestrator.config import to_yaml
from muxrl.orchestrator.measure.subjects import Subject
from muxrl.orchestrator.reports.pages import REPORT_FILE, page_environment
from muxrl.orchestrator.reports.plain_table import grid_table
from muxrl.orchestrator.reports.plots import styles_of
from muxrl.orchestrator.storage.json_files import write_text

if TYPE_CHECKING:
    from pandas import DataFrame

_MIN_NAME = 16
"""Of the names on the terminal, whose words are then not broken."""
_Section = dict[str, Any]
"""A section's id, title and template, and what the template shows."""


def write_page(found: Findings, folder: Path) -> Path:
    """Writes ``report.html``.

    Returns:
        Its path.

    Raises:
        OSError: the folder cannot be written to.
    """
    environment = page_environment(folder, __package__)
    environment.globals.update(below=tables.BELOW_MARK.strip(), baselines=baseline_caption(found))
    template = environment.get_template("page.html")
    path = folder / REPORT_FILE
    write_text(path, template.render(found=found, sections=list(_sections(found))))
    return path


def baseline_caption(found: Findings) -> str:
    """Says what the rows of the baselines hold, which are over episodes; "" without any."""
    if not found.baselines:
        return ""
    num = found.baselines[0].num_episodes
    return f"Baselines: mean over {num} episodes [95 % over episodes]: nothing in them is trained."


def _sections(found: Findings) -> Iterator[_Section]:
    yield _section(
        "settings",
        "Settings and versions",
        grid=tables.settings(found),
        versions=versions_of(found.contestants),
        configs={c.name: to_yaml(c.runs[0].config) for c in found.contestants},
        methods=methods(found),
    )
    if len(found.frames["learners"]):
        yield _section("learned", "Who has learned", grid=tables.learners(found))
    yield _returns(found)
    if len(found.frames["parameters"]):
        grids = list(tables.by_parameter(found, found.main_subjects))
        yield _section("parameters", "By parameter of the episodes", grids=grids)
    learning = _learning(found)
    if learning["figures"]:
        yield learning
    for role, standings in found.frames["roles"].groupby("role", sort=False):
        yield _role(found, role, standings)
    if found.head_to_head is not None:
        yield _head_to_head(found, found.head_to_head)
    yield _section("runs", "All runs", grid=tables.runs(found, _titles(found.main_subjects)))


def _section(anchor: str, title: str, template: str = "", **shown: Any) -> _Section:
    return {"id": anchor, "title": title, "template": f"{template or anchor}.html", **shown}


def _returns(found: Findings) -> _Section:
    styles = styles_of([c.name for c in found.contestants])
    others = [s for s in found.subjects if s not in (*found.main_subjects, *found.metrics)]
    return _section(
        "side-by-side",
        "Returns side by side",
        "returns",
        figures=[final_returns(found, subject, styles) for subject in found.main_subjects],
        grid=tables.returns(found, _titles(found.main_subjects)),
        other_grid=tables.returns(found, _titles(others)) if others else None,
        metric_grid=tables.returns(found, _titles(found.metrics)) if found.metrics else None,
    )


def _learning(found: Findings) -> _Section:
    styles = styles_of([c.name for c in found.contestants])
    return _section(
        "learning",
        "Learning",
        styles={c.name: styles[c.name] for c in found.contestants if c.learns},
        figures=[
            picture
            for subject in found.main_subjects
            for axis in ("env_steps", "time_s")
            if (picture := learning_curves(found, subject, axis, styles)) is not None
        ],
        grids=[(subject, tables.efficiency(found, subject)) for subject in found.main_subjects],
    )


def _role(found: Findings, role: str, standings: DataFrame) -> _Section:
    (subject,) = (s for s in found.subjects if (s.kind, s.name) == ("role", role))
    styles = styles_of(list(standings.label))
    pairings = found.frames["pairings"]
    pairings = pairings[pairings.role == role]
    return _section(
        f"role-{list(found.roles).index(role)}",
        f"Who plays {role}",
        "role",
        subject=subject,
        contexts=standings.among.iloc[0],
        styles=styles,
        figures=[performance_profiles(subject, standings, styles)],
        standings=tables.roles(standings, role),
        improvement=tables.improvements(pairings, list(standings.label)),
        differences=tables.differences(once(pairings)),
    )


def _head_to_head(found: Findings, played: HeadToHead) -> _Section:
    cross_play = [
        {
            "id": f"cross-{'full-' * is_full}{place}",
            "what": ", by what they were trained with" * is_full,
            "role": table.role,
            "is_folded": is_full,
            "grid": tables.cross_play(table, f"{table.role} played by"),
        }
        for is_full, group in ((False, played.by_label), (True, played.by_contestant))
        for place, table in enumerate(group)
    ]
    matches = tables.matches(found)
    where = "head-to-head", "Head to head", "head_to_head"
    curves = [rating_curves(played, table) for table in played.by_label]
    figures = [*filter(None, curves), *map(payoff_picture, played.by_label)]
    return _section(*where, cross_play=cross_play, matches=matches, figures=figures)


def _titles(subjects: Sequence[Subject]) -> dict[str, str]:
    return {subject.key: subject.title for subject in subjects}


def print_comparison(found: Findings, console: Console | None = None) -> None:
    """Prints the headline, the contestants' returns, the merits of the head to head, and notes."""
    console = console or Console()
    for sentence in found.headline:
        console.print(Text(sentence), style="bold")
    of_runs = "interquartile mean over seeds [95 % over seeds]"
    grid = tables.returns(
        found, {subject.key: _heading(subject) for subject in found.main_subjects}
    )
    title = f"Side by side: {of_runs}"
    console.print(grid_table(grid, title, baseline_caption(found), min_text=_MIN_NAME))
    if found.metrics:
        grid = tables.returns(found, {s.key: _heading(s) for s in found.metrics})
        console.print(grid_table(grid, f"Metrics: {of_runs}", min_text=_MIN_NAME, folds=True))
    for name, subject, grid in tables.by_parameter(found, found.main_subjects):
        title = f"Return of {subject.name} by {name}: {of_runs}"
        console.print(grid_table(grid, title, min_text=_MIN_NAME, folds=True))
    if (played := found.head_to_head) is not None:
        among = (RANDOM,) if played.snapshots else ()  # for more of them the page has room
        for cross in played.by_label:
            over = "interquartile mean [95 % over pairs of seeds]"
            title = f"Head to head, return of {cross.role}: {over}"
            console.print(grid_table(tables.cross_play(cross, among=among), title, folds=True))
    for note in found.notes:
        console.print(Text(f"Note: {note}.", style="yellow"))


def _heading(subject: Subject) -> str:
    how = "sum" if subject.kind == "total" else "mean"
    return subject.name + (f"\n{how} of {len(subject.agents)}" if len(subject.agents) > 1 else "")
