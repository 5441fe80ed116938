"""Writes a report from what runs have recorded, and prints it.

Written are ``summary.json``, ``summary.md``, a picture, and ``report.html`` with all of it; it
works for a run that ended, was interrupted, crashed, or was never evaluated. On the terminal no
word of the table is broken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from muxrl.orchestrator.measure.against_random import Verdict
from muxrl.orchestrator.measure.number_text import MISSING, number, signed_interval
from muxrl.orchestrator.measure.results import Report, results_of
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.reports.judged_rows import JudgedRow, judged_rows
from muxrl.orchestrator.reports.metric_rows import METRIC_CAPTION, METRIC_HEADINGS, metric_rows
from muxrl.orchestrator.reports.pages import REPORT_FILE
from muxrl.orchestrator.reports.plain_table import plain_table
from muxrl.orchestrator.reports.plots import learning_png, metrics_key
from muxrl.orchestrator.reports.run_page import write_run_page
from muxrl.orchestrator.storage.json_files import write_bytes, write_json, write_text

HEADINGS = (
    "server",
    "algorithm",
    "agents",
    "env steps",
    "train return",
    "evaluated return",
    "random in its place",
    "untrained in its place",
    "advantage [95 %]",
    "over untrained [95 %]",
    "verdict",
)

_MAX_LISTED = 5
_VERDICT_STYLES = {
    Verdict.BETTER: "green",
    Verdict.BETTER_THAN_BOTH: "green",
    Verdict.NOT_THAN_UNTRAINED: "yellow",
    Verdict.WORSE: "red",
    Verdict.UNCLEAR: "yellow",
}
_VERDICT_WIDTH = len(Verdict.UNCLEAR)  # on the terminal, where the others take two lines
_TERMINAL_HEADINGS = (
    "env\nsteps",
    "train\nreturn",
    "evaluated\nreturn",
    "random in\nits place",
    "advantage\n[95 %]\nverdict",
)
_MIN_NAME_WIDTH = 10


def write_report(run_directory: RunDirectory) -> Report:
    """Writes ``summary.json``, ``summary.md``, ``plots/learning.png`` and ``report.html`` of a run.

    Raises:
        NotARunDirectory: the folder has no ``plan.json`` that can be read.
        MalformedMetrics: a metrics file is broken elsewhere than in its last line.
        OSError: the folder cannot be written to.
    """
    report = results_of([RecordedRun.read(run_directory.path)])
    run_directory.write_summary(report.to_dict())
    write_text(run_directory.path / "summary.md", _markdown(report, "plots/learning.png"))
    # Last, since it is by far the largest: on a full disk the tables may still find room.
    run_directory.plots.mkdir(exist_ok=True)
    picture = learning_png(report)
    write_bytes(run_directory.plots / "learning.png", picture)
    write_run_page(report, picture, run_directory.path / REPORT_FILE, [run_directory.path])
    return report


def combine_runs(paths: Sequence[Path], out: Path, *, over_seeds: bool = False) -> Report:
    """Writes the same of several seeds into `out`, the picture as ``learning.png``.

    Args:
        paths: the run directories, which differ in nothing but the seed.
        out: a folder; made if absent.
        over_seeds: let the intervals speak of training on any seed (a bootstrap of the seeds'
            means) instead of these seeds' policies (of their episodes, stratified by seed).

    Raises:
        ValueError: there is no path.
        DifferentRuns: the runs differ in more than the seed.
        NotARunDirectory, MalformedMetrics, OSError: as `write_report`.
    """
    report = results_of([RecordedRun.read(path) for path in paths], over_seeds=over_seeds)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "summary.json", report.to_dict())
    picture = learning_png(report)
    write_bytes(out / "learning.png", picture)
    write_text(out / "summary.md", _markdown(report, "learning.png"))
    write_run_page(report, picture, out / REPORT_FILE, paths)
    return report


def title_of(report: Report) -> str:
    """Returns the runs and their assignment."""
    name = report.names[0] if len(report.names) == 1 else f"{len(report.names)} seeds"
    return f"{name}: {report.assignment}"


def rows_of(report: Report) -> Iterator[list[str]]:
    """Yields a row of text for each server, and each side of one, under `HEADINGS`."""
    for row in judged_rows(report):
        final = row.final
        yield [
            row.name,
            row.algorithm,
            ", ".join(row.agents),
            f"{row.env_steps:,.0f}" if row.env_steps is not None else MISSING,
            number(row.train_return),
            number(final.learned.mean if final else None),
            number(final.random.mean if final and final.random else None),
            number(final.untrained.mean if final and final.untrained else None),
            signed_interval(final.advantage) if final and final.advantage else MISSING,
            signed_interval(final.over_untrained) if final and final.over_untrained else MISSING,
            _judgement(row, len(report.seeds)),
        ]


def _judgement(row: JudgedRow, num_seeds: int) -> str:
    if num_seeds == 1 or row.verdict is None or row.final is None:
        return row.judgement or MISSING
    return f"{row.verdict} ({row.final.num_seeds_above} of {num_seeds} seeds above)"


def _markdown(report: Report, picture: str) -> str:
    metrics = list(metric_rows(report))
    parts = [
        f"# {title_of(report)}",
        _servers_table(report),
        report.caption,
        *(
            [
                _markdown_table(METRIC_HEADINGS, [*["---"] * 2, *["---:"] * 3], metrics),
                METRIC_CAPTION,
            ]
            if metrics
            else []
        ),
        *(f"**Note:** {note}." for note in report.notes),
        f"![Learning curves]({picture})",
        metrics_key(report),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _servers_table(report: Report) -> str:
    rules = [*["---"] * 3, *["---:"] * 7, "---"]
    shown = [
        i for i, name in enumerate(HEADINGS) if report.has_untrained or "untrained" not in name
    ]
    rows = ([row[i] for i in shown] for row in rows_of(report))
    return _markdown_table([HEADINGS[i] for i in shown], [rules[i] for i in shown], rows)


def _markdown_table(
    headings: Sequence[str], rules: Sequence[str], rows: Iterable[Sequence[str]]
) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|" + "|".join(rules) + "|"]
    lines += ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("_", "\\_").replace("*", "\\*")


def print_report(report: Report, console: Console | None = None) -> None:
    """Prints the table, its caption and its notes."""
    console = console or Console()
    rows = [_cells(row, report.has_untrained) for row in rows_of(report)]
    headings = _headings(report.has_untrained)
    columns = zip(headings, *((*row[:-2], "\n".join(row[-2:])) for row in rows), strict=True)
    widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
    # What is left for names: two spaces stand between columns, one at either edge.
    width = max(_MIN_NAME_WIDTH, console.width - sum(widths) - 2 * len(widths) - 2)
    table = plain_table("")
    # Algorithm and agents stand under their server, and the verdict under what it is about.
    table.add_column("server\nalgorithm\nagents", overflow="fold")
    for heading in headings:
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for judged, row in zip(judged_rows(report), rows, strict=True):
        style = _VERDICT_STYLES[judged.verdict] if judged.verdict is not None else ""
        *numbers, advantage, verdict = row
        names = [("\n".join(broken(judged.name, width)), "bold")]
        names.append(("\n".join(["", *broken(judged.algorithm, width)]), ""))
        names += [("\n".join(["", *broken(a, width)]), "dim") for a in _listed(judged.agents)]
        found = Text.assemble(f"{advantage}\n", (verdict, style))
        table.add_row(Text.assemble(*names), *map(Text, numbers), found)
    # Outside of the table, which may be narrower than the terminal.
    console.print(Text("\n".join(broken(title_of(report), console.width)), style="bold"))
    console.print(table)
    console.print(Text(report.caption, style="italic"))
    if report.metrics:
        console.print(_metric_table(report))
        console.print(Text(METRIC_CAPTION, style="italic"))
    for note in report.notes:
        console.print(Text(f"Note: {note}.", style="yellow"))


def _metric_table(report: Report) -> Table:
    table = plain_table("")
    for heading in METRIC_HEADINGS[:2]:
        table.add_column(heading, overflow="fold")
    for heading in ("train", "evaluated\n[95 %]", "random\nin place"):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for name, of, train, evaluated, random in metric_rows(report):
        cells = (evaluated.replace(" [", "\n["), random.replace(", ", "\n"))
        table.add_row(Text(name), Text(of), *map(Text, (train, *cells)))
    return table


def broken(name: str, width: int) -> list[str]:
    """Breaks a long name into lines, at spaces or after its punctuation, not inside its words."""
    lines = [""]
    for part in re.split(r"(?<=[\s_,|:.-])", name):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return [line.rstrip() for line in lines]


def _headings(has_untrained: bool) -> tuple[str, ...]:
    *numbers, random, advantage = _TERMINAL_HEADINGS
    return (*numbers, f"{random}\nuntrained" if has_untrained else random, advantage)


def _cells(row: Sequence[str], has_untrained: bool) -> tuple[str, ...]:
    """A row without its names; below random untrained, if there is any, the interval below the
    advantage, seeds below the verdict. How much it is over untrained is in ``summary.md``."""
    *numbers, random, untrained, advantage, _, verdict = row[3:]
    verdict, *seeds = verdict.split(" (")
    lines = [*broken(verdict, _VERDICT_WIDTH), *(f"({part}" for part in seeds)]
    place = f"{random}\n{untrained}" if has_untrained else random
    return (*numbers, place, advantage.replace(" [", "\n["), "\n".join(lines))


def _listed(agents: Sequence[str]) -> list[str]:
    """Agents; of many, the first few, since ``summary.md`` has them all."""
    shown = list(agents if len(agents) <= _MAX_LISTED else agents[: _MAX_LISTED - 1])
    return shown + ([f"and {len(agents) - len(shown)} more"] if len(shown) < len(agents) else [])
