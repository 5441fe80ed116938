"""A comparison on the terminal: the returns, the head to head, and the notes."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from muxrl.orchestrator.comparisons.findings.findings import Findings
from muxrl.orchestrator.comparisons.findings.roles import Subject
from muxrl.orchestrator.comparisons.output import tables
from muxrl.orchestrator.comparisons.output.page import returns_grids
from muxrl.orchestrator.comparisons.output.table import Cell, GridRow
from muxrl.orchestrator.reports.plain_table import plain_table


def print_comparison(found: Findings, console: Console | None = None) -> None:
    """Prints the contestants' returns, the merits of the head to head, and the notes."""
    console = console or Console()
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
    for cross in found.head_to_head.by_label if found.head_to_head else ():
        grid = tables.cross_play(cross).spread(
            ["player", "merit"], "others", {each: f"vs {each}" for each in cross.others}, "score"
        )
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
