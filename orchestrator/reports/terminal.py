"""A report on the terminal: a table that breaks no word, its caption and its notes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from muxrl.orchestrator.reports.against_random import Verdict
from muxrl.orchestrator.reports.plain_table import plain_table
from muxrl.orchestrator.reports.report import rows_of, title_of
from muxrl.orchestrator.reports.results import Report

_MAX_LISTED = 5
_VERDICT_STYLES = {Verdict.BETTER: "green", Verdict.WORSE: "red", Verdict.UNCLEAR: "yellow"}
_HEADINGS = (
    "env\nsteps",
    "train\nreturn",
    "evaluated\nreturn",
    "random in\nits place",
    "advantage\n[95 %]\nverdict",
)
_MIN_NAME_WIDTH = 10


def print_report(report: Report, console: Console | None = None) -> None:
    """Prints the table, its caption and its notes."""
    console = console or Console()
    rows = [_cells(row) for row in rows_of(report)]
    columns = zip(_HEADINGS, *((*row[:-2], "\n".join(row[-2:])) for row in rows), strict=True)
    widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
    # What is left for names: two spaces stand between columns, one at either edge.
    width = max(_MIN_NAME_WIDTH, console.width - sum(widths) - 2 * len(widths) - 2)
    table = plain_table("")
    # Algorithm and agents stand under their server, and the verdict under what it is about.
    table.add_column("server\nalgorithm\nagents", overflow="fold")
    for heading in _HEADINGS:
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for server, row in zip(report.servers, rows, strict=True):
        style = ""
        if server.final is not None and server.final.verdict is not None:
            style = _VERDICT_STYLES[server.final.verdict]
        *numbers, advantage, verdict = row
        names = [("\n".join(broken(server.server_id, width)), "bold")]
        names.append(("\n".join(["", *broken(server.algorithm, width)]), ""))
        names += [("\n".join(["", *broken(a, width)]), "dim") for a in _listed(server.agents)]
        judged = Text.assemble(f"{advantage}\n", (verdict, style))
        table.add_row(Text.assemble(*names), *map(Text, numbers), judged)
    # Outside of the table, which may be narrower than the terminal.
    console.print(Text("\n".join(broken(title_of(report), console.width)), style="bold"))
    console.print(table)
    console.print(Text(report.caption, style="italic"))
    for note in report.notes:
        console.print(Text(f"Note: {note}.", style="yellow"))


def broken(name: str, width: int) -> list[str]:
    """Breaks a long name into lines, at spaces or after its punctuation, not inside its words."""
    lines = [""]
    for part in re.split(r"(?<=[\s_,|:.-])", name):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return [line.rstrip() for line in lines]


def _cells(row: Sequence[str]) -> tuple[str, ...]:
    """A row without its names, the interval below the advantage, seeds below the verdict."""
    *numbers, advantage, verdict = row[3:]
    return (*numbers, advantage.replace(" [", "\n["), verdict.replace(" (", "\n("))


def _listed(agents: Sequence[str]) -> list[str]:
    """Agents; of many, the first few, since ``summary.md`` has them all."""
    shown = list(agents if len(agents) <= _MAX_LISTED else agents[: _MAX_LISTED - 1])
    return shown + ([f"and {len(agents) - len(shown)} more"] if len(shown) < len(agents) else [])
