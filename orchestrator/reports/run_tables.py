"""Makes the tables of a run's report: servers, the simulation's metrics, numbers of learners."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from muxrl.orchestrator.measure.against_random import AgainstRandom, Verdict
from muxrl.orchestrator.measure.judged import Judged, MetricResult, ServerResult
from muxrl.orchestrator.measure.number_text import MISSING, number, signed_lines, whole
from muxrl.orchestrator.measure.results import Report
from muxrl.orchestrator.records.metrics import iter_rows
from muxrl.orchestrator.records.rows import IterationRow
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.reports.plain_table import broken
from muxrl.orchestrator.reports.table import Column, Columns, Grid, Row, grid, stacked

METRIC_CAPTION = (
    "A metric is a number of the whole episode, or for a server the mean over its agents. Random "
    "in place: evaluated with that server's agents acting at random."
)
_VERDICT_STYLES: Mapping[str, str] = {
    Verdict.BETTER: "green",
    Verdict.BETTER_THAN_BOTH: "green",
    Verdict.NOT_THAN_UNTRAINED: "yellow",
    Verdict.NOT_ALL_UPDATED: "yellow",
    Verdict.WORSE: "red",
    Verdict.UNCLEAR: "yellow",
}
_VERDICT_WIDTH = len(Verdict.UNCLEAR)  # on the terminal, where longer verdicts take two lines
_ESTIMATES = ("learned", "random", "untrained", "advantage", "over_untrained")
_SHOWN: Columns = {
    "name": Column("server", cell=lambda row: {"style": "bold"}),
    "agents": Column("", tuple, lambda row: {"style": "dim"}, css="wrap", gap=", "),
    "env_steps": Column("env\nsteps", whole),
    "train_return": "train\nreturn",
    "learned": Column("evaluated\nreturn", css="words"),
    "random": Column("random in\nits place", css="words"),
    "untrained": Column(css="words"),
    "advantage": Column(shown=signed_lines, css="words"),
    "over_untrained": Column("over untrained", signed_lines, css="words"),
    "judged": Column(
        "verdict",
        tuple,
        lambda row: {"style": _VERDICT_STYLES.get(row["judgement"], "")},
        css="text words",
    ),
}


def _rows(report: Report) -> Iterator[Row]:
    """Yields a row for each server, followed by its sides, which have no training of their own."""
    num_seeds = len(report.seeds)
    for server in report.servers:
        steps = server.env_steps if server.learns else None
        trained = {"env_steps": steps, "train_return": server.train_return}
        # If the server plays itself, the mean over all its agents says nothing.
        final = None if server.learns and server.plays_itself else server.final
        yield trained | _row(server.server_id, server, server, final, server.judgement, num_seeds)
        for side in server.sides:
            judgement = side.verdict if server.has_updates else server.judgement
            name = f"{server.server_id}/{side.name}"
            yield _row(name, server, side, side.final, judgement, num_seeds)


def _row(
    name: str,
    server: ServerResult,
    of: Judged,
    final: AgainstRandom | None,
    judgement: Verdict | str,
    num_seeds: int,
) -> dict[str, Any]:
    judged = broken(judgement or MISSING, _VERDICT_WIDTH)
    if num_seeds > 1 and final is not None and isinstance(judgement, Verdict):
        judged.append(f"({final.num_seeds_above} of {num_seeds} seeds above)")
    if server.over_acting is not None and server.over_acting.advantage is not None:
        difference, of_difference = signed_lines(server.over_acting.advantage)
        judged += [f"(over {server.shadow}: {difference}", f"{of_difference})"]
    return {
        "name": name,
        "algorithm": server.trained_by,
        "agents": of.agents,
        **{kind: getattr(final, kind, None) for kind in _ESTIMATES},
        "judgement": judgement,
        "judged": judged,
    }


def servers_grid(report: Report) -> Grid:
    """Returns the table of servers, and of the sides of servers that play themselves."""
    untrained = ("untrained", "over_untrained") if report.has_untrained else ("", "")
    names = (
        "name algorithm agents env_steps train_return learned random {} advantage {} judged"
    ).format(*untrained)
    return grid(_rows(report), names, _SHOWN, report.interval_unit)


def servers_stacked(report: Report) -> Grid:
    """Returns `servers_grid` for the terminal.

    Algorithm and agents are below their server, and the verdict is below the advantage.
    """
    stacks = ("name algorithm agents", "env_steps", "train_return", "learned", "random untrained",
              "advantage judged")  # fmt: skip
    return stacked(servers_grid(report), stacks, brief="learned random untrained")


def metrics_grid(report: Report) -> Grid:
    """Returns a table with a row for each metric of the whole episode or of a server."""
    rows = (
        {
            "metric": metric.name,
            "of": metric.server or "episode",
            "train": metric.train,
            "evaluated": metric.evaluated,
            "random": _at_random(metric),
        }
        for metric in report.metrics
    )
    columns = {
        "evaluated": Column(css="words"),
        "random": Column("random\nin place", tuple, css="words", gap=", "),
    }
    return grid(rows, "metric of train evaluated random", columns, report.interval_unit)


def learners_grid(run_dir: Path) -> Grid:
    """Returns a table with a row for each number of a policy's learner that changed in a run.

    Raises:
        NotARunDirectory: the folder has no plan that can be read.
        MalformedMetrics: a metrics file is broken elsewhere than in its last line.
    """
    rows = (row for row in _learner_rows(run_dir) if row["lowest"] < row["highest"])
    return grid(rows, "server policy metric first lowest highest last")


def _learner_rows(run_dir: Path) -> Iterator[dict[str, Any]]:
    folder = RunDirectory.open(run_dir)
    for server in folder.read_plan().servers:
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for of_iteration in iter_rows(folder.metrics / f"{server}.jsonl", IterationRow):
            for policy, values in of_iteration.learner.items():
                for metric, value in values.items():
                    if value is None or not math.isfinite(value):
                        continue
                    about = {"server": server, "policy": policy, "metric": metric}
                    ends = {"first": value, "lowest": value, "highest": value}
                    row = found.setdefault((policy, metric), about | ends)
                    row["lowest"] = min(row["lowest"], value)
                    row["highest"] = max(row["highest"], value)
                    row["last"] = value
        yield from found.values()


def _at_random(metric: MetricResult) -> tuple[str, ...]:
    """Returns a metric's mean with its server at random, or an episode's with each server so."""
    if metric.server is None:
        return tuple(f"{number(x.mean)} ({s})" for s, x in metric.random.items()) or (MISSING,)
    return (number(metric.random[metric.server].mean) if metric.random else MISSING,)
