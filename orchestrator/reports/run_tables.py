"""The tables of a run's report: its servers, the simulation's metrics, what learners measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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
    "Of an episode, or the mean over the server's agents. Random in place: evaluated with that "
    "server's agents random."
)
_MAX_LISTED = 5
_VERDICT_STYLES: Mapping[str, str] = {
    Verdict.BETTER: "green",
    Verdict.BETTER_THAN_BOTH: "green",
    Verdict.NOT_THAN_UNTRAINED: "yellow",
    Verdict.WORSE: "red",
    Verdict.UNCLEAR: "yellow",
}
_VERDICT_WIDTH = len(Verdict.UNCLEAR)  # on the terminal, where the others take two lines
_ESTIMATES = ("learned", "random", "untrained", "advantage", "over_untrained")


def _rows(report: Report) -> Iterator[Row]:
    """Yields a row for each server, below it its sides, which are trained together."""
    num_seeds = len(report.seeds)
    for server in report.servers:
        steps = server.env_steps if server.learns else None
        trained = {"env_steps": steps, "train_return": server.train_return}
        # Where it plays itself, the mean over all agents says nothing.
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
    estimates = {kind: getattr(final, kind, None) for kind in _ESTIMATES}
    return {
        "name": name,
        "algorithm": server.algorithm,
        "agents": of.agents,
        "some_agents": _some(of.agents),
        **estimates,
        **{f"{kind}_mean": found and found.mean for kind, found in estimates.items()},
        "judgement": judgement,
        "judged_seeds": tuple(judged),
    }


def _shown(report: Report) -> Columns:
    over = f"[95 %,\n{report.interval_unit}]"
    return {
        "name": Column("server", cell=lambda row: {"style": "bold"}),
        "agents": Column(shown=", ".join, css="wrap"),
        "some_agents": Column("agents", tuple, lambda row: {"style": "dim"}),
        "env_steps": Column("env\nsteps", whole),
        "train_return": "train\nreturn",
        "learned": Column("evaluated\nreturn", css="words"),
        "learned_mean": "evaluated\nreturn",
        "random": Column("random in\nits place", css="words"),
        "random_mean": "random in\nits place",
        "untrained": Column("untrained in its place", css="words"),
        "untrained_mean": "untrained in its place",
        "advantage": Column(f"advantage\n{over}", signed_lines, css="words"),
        "over_untrained": Column(f"over untrained {over}", signed_lines, css="words"),
        "judgement": Column("verdict", css="text words"),
        "judged_seeds": Column(
            "verdict",
            tuple,
            lambda row: {"style": _VERDICT_STYLES.get(row["judgement"], "")},
            css="text",
        ),
    }


def servers_grid(report: Report) -> Grid:
    """Returns the servers, and the sides of those that play themselves, for pages."""
    columns = {**_shown(report)}
    for name, heading in (("advantage", "advantage"), ("over_untrained", "over untrained")):
        columns[name] = Column(heading, signed_lines, css="words")
    names = (
        "name algorithm agents env_steps train_return learned random untrained advantage "
        "over_untrained judgement"
    )
    return grid(_rows(report), names, columns)


def servers_summary(report: Report) -> Grid:
    """Returns the same for Markdown, means without intervals."""
    untrained = ("untrained_mean", "over_untrained") if report.has_untrained else ("", "")
    names = (
        "name algorithm agents env_steps train_return learned_mean random_mean {} advantage {} "
        "judged_seeds".format(*untrained)
    )
    return grid(_rows(report), names, _shown(report))


def servers_stacked(report: Report) -> Grid:
    """Returns the same for the terminal.

    Algorithm and agents stand under their server, and the verdict under what it is about. How much
    it is over untrained is in ``summary.md``.
    """
    random = "random_mean untrained_mean" if report.has_untrained else "random_mean"
    names = "name algorithm some_agents"
    numbers = ("env_steps", "train_return", "learned_mean", random, "advantage judged_seeds")
    columns = {**_shown(report), "untrained_mean": "untrained"}
    return stacked(list(_rows(report)), (names, *numbers), columns)


def metrics_grid(report: Report) -> Grid:
    """Returns a row for each metric, and whose it is."""
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
        "evaluated": Column(f"evaluated\n[95 %, {report.interval_unit}]", css="words"),
        "random": Column("random\nin place", tuple, css="words", gap=", "),
    }
    return grid(rows, "metric of train evaluated random", columns)


def learners_grid(run_dir: Path) -> Grid:
    """Returns a row for each number of a policy's learner that changed in a run.

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


def _some(agents: Sequence[str]) -> tuple[str, ...]:
    """Agents; of many, the first few, since ``summary.md`` has them all."""
    if len(agents) <= _MAX_LISTED:
        return tuple(agents)
    num_shown = _MAX_LISTED - 1
    return *agents[:num_shown], f"and {len(agents) - num_shown} more"


def _at_random(metric: MetricResult) -> tuple[str, ...]:
    """A metric's mean with a server's agents at random; of an episode's, for each server."""
    if metric.server is None:
        return tuple(f"{number(x.mean)} ({s})" for s, x in metric.random.items()) or (MISSING,)
    return (number(metric.random[metric.server].mean) if metric.random else MISSING,)
