"""Writes a report: ``summary.json``, ``summary.md`` and a picture, from what runs have recorded.

It works for a run that ended, was interrupted, crashed, or was never evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from muxrl.orchestrator.records.json_files import write_json, write_text
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.reports.number_text import MISSING, number, signed_interval
from muxrl.orchestrator.reports.plots import draw_learning
from muxrl.orchestrator.reports.results import Report, ServerResult, results_of

HEADINGS = (
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


def write_report(run_directory: RunDirectory) -> Report:
    """Writes ``summary.json``, ``summary.md`` and ``plots/learning.png`` of one run.

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
    draw_learning(report, run_directory.plots / "learning.png")
    return report


def combine_runs(paths: Sequence[Path], out: Path, *, over_seeds: bool = False) -> Report:
    """Writes ``summary.json``, ``summary.md`` and ``learning.png`` of several seeds into `out`.

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


def title_of(report: Report) -> str:
    """Returns the runs and their assignment."""
    name = report.names[0] if len(report.names) == 1 else f"{len(report.names)} seeds"
    return f"{name}: {report.assignment}"


def rows_of(report: Report) -> Iterator[list[str]]:
    """Yields a row of text for each server, under `HEADINGS`."""
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
    rows = ["| " + " | ".join(HEADINGS) + " |"]
    rows.append("|" + "|".join(["---"] * 3 + ["---:"] * 5 + ["---"]) + "|")
    rows += ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in rows_of(report)]
    parts = [
        f"# {title_of(report)}",
        "\n".join(rows),
        report.caption,
        *(f"**Note:** {note}." for note in report.notes),
        f"![Learning curves]({picture})",
    ]
    return "\n\n".join(parts) + "\n"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("_", "\\_").replace("*", "\\*")
