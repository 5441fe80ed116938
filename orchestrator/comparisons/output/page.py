"""A comparison for people: one HTML file that needs no other, and a summary on the terminal.

What the page says is in ``templates/``, a file for each section; here the tables and figures that
each section shows are put together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from muxrl.orchestrator.comparisons.findings.contestants import Subject
from muxrl.orchestrator.comparisons.findings.findings import Findings, has_few_seeds
from muxrl.orchestrator.comparisons.findings.head_to_head import HeadToHead
from muxrl.orchestrator.comparisons.findings.role_by_role import RoleResult
from muxrl.orchestrator.comparisons.findings.settings import versions_of
from muxrl.orchestrator.comparisons.output import tables
from muxrl.orchestrator.comparisons.output.figures import (
    final_returns,
    learning_curves,
    performance_profiles,
    styles_of,
)
from muxrl.orchestrator.config import to_yaml
from muxrl.orchestrator.reports.pages import REPORT_FILE, page_environment
from muxrl.orchestrator.reports.plain_table import plain_table
from muxrl.orchestrator.reports.table import Cell, Grid, GridRow
from muxrl.orchestrator.storage.json_files import write_text

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
    environment.globals.update(below=tables.BELOW_MARK.strip())
    template = environment.get_template("page.html")
    path = folder / REPORT_FILE
    write_text(path, template.render(found=found, sections=list(_sections(found))))
    return path


def returns_grids(found: Findings, headings: Mapping[str, str]) -> list[Grid]:
    """Returns the contestants' returns, then the baselines'.

    Args:
        found: whose.
        headings: of the columns, by the key of the subject that each shows.
    """
    return [
        table.spread(["contestant"], "subject", headings, shown, ["num_runs"])
        for table, shown in ((tables.standings(found), "iqm"), (tables.baselines(found), "mean"))
    ]


def _sections(found: Findings) -> Iterator[_Section]:
    yield _settings(found)
    if found.learners:
        yield _learners(found)
    yield _returns(found)
    learning = _learning(found)
    if learning["figures"]:
        yield learning
    for result in found.roles_compared:
        yield _role(found, result)
    if found.head_to_head is not None:
        yield _head_to_head(found, found.head_to_head)
    yield _runs(found)


def _settings(found: Findings) -> _Section:
    return {
        "id": "settings",
        "title": "Settings and versions",
        "template": "settings.html",
        "grid": tables.settings(found).grid(["role", "label", "algorithm", "differing"]),
        "versions": versions_of(found.contestants),
        "configs": {c.name: to_yaml(c.runs[0].config) for c in found.contestants},
    }


def _learners(found: Findings) -> _Section:
    return {
        "id": "learned",
        "title": "Who has learned",
        "template": "learned.html",
        "grid": tables.learners(found).grid(
            [
                "role",
                "label",
                "others",
                "advantage",
                "over_untrained",
                "num_below",
                "num_runs",
                "verdict",
            ]
        ),
    }


def _returns(found: Findings) -> _Section:
    styles = styles_of([c.name for c in found.contestants])
    others = [s for s in found.subjects if s not in (*found.main_subjects, *found.metrics)]
    return {
        "id": "side-by-side",
        "title": "Returns side by side",
        "template": "returns.html",
        "figures": [final_returns(found, subject, styles) for subject in found.main_subjects],
        "grids": returns_grids(found, _titles(found.main_subjects)),
        "other_grids": returns_grids(found, _titles(others)) if others else [],
        "metric_grids": _metric_grids(found, _titles(found.metrics)),
    }


def _metric_grids(found: Findings, headings: Mapping[str, str]) -> list[Grid]:
    """Returns the contestants' metrics; there are no baselines of them."""
    return returns_grids(found, headings)[:1] if headings else []


def _learning(found: Findings) -> _Section:
    styles = styles_of([c.name for c in found.contestants])
    learning = [c.name for c in found.contestants if c.learns]
    table = tables.standings(found)
    return {
        "id": "learning",
        "title": "Learning",
        "template": "learning.html",
        "styles": {name: styles[name] for name in learning},
        "figures": [
            picture
            for subject in found.main_subjects
            for axis in ("env_steps", "time_s")
            if (picture := learning_curves(found, subject, axis, styles)) is not None
        ],
        "grids": [
            (
                subject,
                table.of(found.standing(name, subject.key) for name in learning).grid(
                    [
                        "contestant",
                        "area",
                        "num_reached",
                        "env_steps_to_threshold",
                        "time_s_to_threshold",
                        "time_s",
                    ]
                ),
            )
            for subject in found.main_subjects
        ],
    }


def _role(found: Findings, result: RoleResult) -> _Section:
    role = result.subject.name
    labels = {standing.label: standing.label for standing in result.standings}
    styles = styles_of(list(labels))
    pairings = tables.pairings(found)
    return {
        "id": f"role-{list(found.roles).index(role)}",
        "title": f"Who plays {role}",
        "template": "role.html",
        "result": result,
        "few": has_few_seeds(found.contestants),
        "styles": styles,
        "figures": [performance_profiles(result, styles)],
        "standings": tables.roles(found)
        .of(result.standings)
        .grid(["label", "iqm", "random_in_place", "num_runs"], {"label": role}),
        "improvement": pairings.of(result.pairings).spread(
            ["first"], "second", labels, "improvement", headings={"first": "row > column"}
        ),
        "differences": pairings.of(result.unordered_pairings).grid(
            ["first", "second", "difference", "num_pairs"]
        ),
    }


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
    return {
        "id": "head-to-head",
        "title": "Head to head",
        "template": "head_to_head.html",
        "cross_play": cross_play,
        "matches": tables.matches(found).grid(
            ["role", "player", "others", "return", "num_episodes", "run", "other_run"]
        ),
    }


def _runs(found: Findings) -> _Section:
    main = _titles(found.main_subjects)
    table = tables.runs(found)
    return {
        "id": "runs",
        "title": "All runs",
        "template": "runs.html",
        "grid": table.of(run for run in table.rows if run.subject in main).spread(
            ["contestant", "seed"],
            "subject",
            main,
            "return",
            ["num_episodes", "env_steps", "time_s", "run"],
        ),
    }


def _titles(subjects: Sequence[Subject]) -> dict[str, str]:
    return {subject.key: subject.title for subject in subjects}


def print_comparison(found: Findings, console: Console | None = None) -> None:
    """Prints the headline, the contestants' returns, the merits of the head to head, and notes."""
    console = console or Console()
    for sentence in found.headline:
        console.print(Text(sentence), style="bold")
    headings = {subject.key: _heading(subject) for subject in found.main_subjects}
    contestants, baselines = returns_grids(found, headings)
    name, *subjects, seeds = contestants.headings
    table = plain_table("Side by side: interquartile mean over runs [95 %]")
    table.add_column(name.text, overflow="fold", min_width=16)
    for heading in subjects:
        table.add_column(Text(heading.text), justify="right", no_wrap=True)
    table.add_column(seeds.text, justify="right")
    _add_rows(table, contestants.rows)
    table.add_section()
    _add_rows(table, baselines.rows, style="dim")
    console.print(table)
    for grid in _metric_grids(found, {subject.key: _heading(subject) for subject in found.metrics}):
        table = plain_table("Metrics: interquartile mean over runs [95 %]")
        table.add_column(grid.headings[0].text, overflow="fold", min_width=16)
        for heading in grid.headings[1:]:
            table.add_column(Text(heading.text), justify="right", overflow="fold")
        _add_rows(table, grid.rows)
        console.print(table)
    for cross in found.head_to_head.by_label if found.head_to_head else ():
        grid = tables.cross_play(cross)
        player, merit, *others = grid.headings
        table = plain_table(f"Head to head, return of {cross.role}: interquartile mean [95 %]")
        table.add_column(player.text, overflow="fold")
        table.add_column(merit.text, justify="right")
        for heading in others:
            table.add_column(Text(heading.text), justify="right", overflow="fold")
        _add_rows(table, grid.rows)
        console.print(table)
    for note in found.notes:
        console.print(Text(f"Note: {note}.", style="yellow"))


def _heading(subject: Subject) -> str:
    how = "sum" if subject.kind == "total" else "mean"
    return subject.name + (f"\n{how} of {len(subject.agents)}" if len(subject.agents) > 1 else "")


def _add_rows(table: Table, rows: tuple[GridRow, ...], style: str = "") -> None:
    for row in rows:
        table.add_row(*(Text(_text(cell), style=style) for cell in row.cells))


def _text(cell: Cell) -> str:
    """A name as it is; a mean above its interval, so that a table of several fits 80 columns."""
    return cell.text if cell.css else cell.text.replace(" [", "\n[")
