"""Who learned what, how fast, and how sure we are: from a run's files to table and picture.

Works on whatever there is: a run that ended, was interrupted, crashed, or never evaluated.

::

    python -m muxrl.orchestrator.reports.report RUN     # writes into the run's directory
    python -m muxrl.orchestrator.reports.report RUN RUN RUN --out DIR    # seeds, together
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from muxrl.orchestrator.errors import DifferentRuns, MalformedMetrics, NotARunDirectory
from muxrl.orchestrator.records.json_files import write_json, write_text
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.reports.against_random import Verdict
from muxrl.orchestrator.reports.number_text import MISSING, number, signed_interval
from muxrl.orchestrator.reports.plain_table import plain_table
from muxrl.orchestrator.reports.plots import draw_learning
from muxrl.orchestrator.reports.results import Report, ServerResult, results_of

_HEADINGS = (
    "server",
    "algorithm",
    "agents",
    "env steps",
    "train return",
    "evaluated return",
    "random in its place",
    "advantage [95 %]",
    "verdict",
)
_MAX_LISTED = 5
_VERDICT_STYLES = {Verdict.BETTER: "green", Verdict.WORSE: "red", Verdict.UNCLEAR: "yellow"}


def write_report(run_directory: RunDirectory) -> Report:
    """Write ``summary.json``, ``summary.md`` and ``plots/learning.png`` of one run.

    Raises:
        NotARunDirectory: the folder has no ``plan.json`` that can be read.
        MalformedMetrics: a metrics file is broken elsewhere than in its last line.
        OSError: the folder cannot be written to.
    """
    report = results_of([RecordedRun.read(run_directory.path)])
    run_directory.write_summary(report.to_dict())
    run_directory.plots.mkdir(exist_ok=True)
    draw_learning(report, run_directory.plots / "learning.png")
    write_text(run_directory.path / "summary.md", _markdown(report, "plots/learning.png"))
    return report


def combine_runs(paths: Sequence[Path], out: Path, *, over_seeds: bool = False) -> Report:
    """Write ``summary.json``, ``summary.md`` and ``learning.png`` of several seeds into `out`.

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
    draw_learning(report, out / "learning.png")
    write_text(out / "summary.md", _markdown(report, "learning.png"))
    return report


def print_report(report: Report, console: Console | None = None) -> None:
    """Print the table, its caption and its notes."""
    console = console or Console()
    table = plain_table(_title(report), report.caption)
    # Algorithm and agents stand under their server and only verdicts wrap: it fits 80 columns.
    table.add_column("server\nalgorithm\nagents", no_wrap=True)
    for heading in (
        "env\nsteps",
        "train\nreturn",
        "evaluated\nreturn",
        "random in\nits place",
        "advantage\n[95 %]",
    ):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    for server, row in zip(report.servers, _rows(report), strict=True):
        server_id, algorithm, _, *numbers, advantage, verdict = row
        style = ""
        if server.final is not None and server.final.verdict is not None:
            style = _VERDICT_STYLES[server.final.verdict]
        table.add_row(
            Text.assemble((server_id, "bold"), f"\n{algorithm}", (_listed(server.agents), "dim")),
            *map(Text, numbers),
            Text(advantage.replace(" [", "\n[")),
            Text(verdict, style=style),
        )
    console.print(table)
    for note in report.notes:
        console.print(Text(f"Note: {note}.", style="yellow"))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line above; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m muxrl.orchestrator.reports.report",
        description="Table and picture of one run, or of several seeds of one experiment.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="a run's directory")
    parser.add_argument(
        "--out", type=Path, help="folder for the results; one RUN alone: its own directory"
    )
    parser.add_argument(
        "--over-seeds",
        action="store_true",
        help="intervals over seeds (what training again would bring), not over their episodes",
    )
    options = parser.parse_args(arguments)
    if len(options.runs) > 1 and options.out is None:
        parser.error("several runs need --out DIR, since their report belongs to none of them")
    try:
        if options.out is None:
            report = write_report(RunDirectory.open(options.runs[0]))
        else:
            report = combine_runs(options.runs, options.out, over_seeds=options.over_seeds)
    except (NotARunDirectory, MalformedMetrics, DifferentRuns, OSError) as error:
        Console(stderr=True).print(Text(str(error), style="red"))
        return 1
    print_report(report)
    return 0


def _listed(agents: Sequence[str]) -> str:
    """Agents, one a line; of many, the first few, since ``summary.md`` has them all."""
    shown = agents if len(agents) <= _MAX_LISTED else agents[: _MAX_LISTED - 1]
    rest = [f"and {len(agents) - len(shown)} more"] if len(shown) < len(agents) else []
    return "".join(f"\n{line}" for line in [*shown, *rest])


def _title(report: Report) -> str:
    name = report.names[0] if len(report.names) == 1 else f"{len(report.names)} seeds"
    return f"{name}: {report.assignment}"


def _rows(report: Report) -> Iterator[list[str]]:
    """The table's cells; the verdict comes last."""
    for server in report.servers:
        final = server.final
        yield [
            server.server_id,
            server.algorithm,
            ", ".join(server.agents),
            f"{server.env_steps:,.0f}" if server.learns else MISSING,
            number(server.train_return),
            number(final.learned.mean if final else None),
            number(final.random.mean if final and final.random else None),
            signed_interval(final.advantage) if final and final.advantage else MISSING,
            _verdict(server, len(report.seeds)),
        ]


def _verdict(server: ServerResult, num_seeds: int) -> str:
    if not server.learns:
        return "does not learn"
    if server.final is None or server.final.verdict is None:
        return MISSING
    if num_seeds == 1:
        return str(server.final.verdict)
    return f"{server.final.verdict} ({server.final.num_seeds_above} of {num_seeds} seeds above)"


def _markdown(report: Report, picture: str) -> str:
    rows = ["| " + " | ".join(_HEADINGS) + " |"]
    rows.append("|" + "|".join(["---"] * 3 + ["---:"] * 5 + ["---"]) + "|")
    rows += ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in _rows(report)]
    parts = [
        f"# {_title(report)}",
        "\n".join(rows),
        report.caption,
        *(f"**Note:** {note}." for note in report.notes),
        f"![Learning curves]({picture})",
    ]
    return "\n\n".join(parts) + "\n"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("_", "\\_").replace("*", "\\*")


if __name__ == "__main__":
    sys.exit(main())
