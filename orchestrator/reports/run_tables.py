"""The tables of a run's report: its servers, and the simulation's metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from muxrl.orchestrator.measure.against_random import AgainstRandom, Verdict
from muxrl.orchestrator.measure.metric_results import MetricResult
from muxrl.orchestrator.measure.number_text import (
    MISSING,
    interval_lines,
    number,
    signed_lines,
    whole,
)
from muxrl.orchestrator.measure.results import Report
from muxrl.orchestrator.measure.statistics import Estimate
from muxrl.orchestrator.reports.plain_table import broken
from muxrl.orchestrator.reports.table import Column, Grid, Shown, Table, table

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


@dataclass(frozen=True)
class JudgedRow:
    """What is said of a server, or of a side of one that plays itself."""

    name: str
    """A server's id, or ``SERVER/SIDE``."""
    algorithm: str
    agents: tuple[str, ...]
    env_steps: float | None
    """Of training; None where nothing is trained, and for sides, which are trained together."""
    train_return: float | None
    final: AgainstRandom | None
    """None where nothing was evaluated, and where the mean over all agents says nothing."""
    judgement: Verdict | str
    """See `ServerResult.judgement`."""


def judged_rows(report: Report) -> Iterator[JudgedRow]:
    """Yields a row for each server, below it its sides."""
    for server in report.servers:
        yield JudgedRow(
            name=server.server_id,
            algorithm=server.algorithm,
            agents=server.agents,
            env_steps=server.env_steps if server.learns else None,
            train_return=server.train_return,
            final=None if server.learns and server.plays_itself else server.final,
            judgement=server.judgement,
        )
        for side in server.sides:
            yield JudgedRow(
                name=f"{server.server_id}/{side.name}",
                algorithm=server.algorithm,
                agents=side.agents,
                env_steps=None,
                train_return=None,
                final=side.final,
                judgement=side.verdict if server.has_updates else server.judgement,
            )


def servers_table(report: Report) -> Table[JudgedRow]:
    """Returns a row for each server, and each side of one."""
    num_seeds, over = len(report.seeds), f"[95 %,\n{report.interval_unit}]"

    def judged(row: JudgedRow) -> tuple[str, ...]:
        lines = broken(row.judgement or MISSING, _VERDICT_WIDTH)
        if num_seeds > 1 and row.final is not None and isinstance(row.judgement, Verdict):
            lines.append(f"({row.final.num_seeds_above} of {num_seeds} seeds above)")
        return tuple(lines)

    return Table(
        (
            Column("name", "server", style=lambda row: "bold"),
            Column("algorithm"),
            Column("agents", shown=", ".join, css="wrap"),
            Column("some_agents", "agents", lambda r: r.agents, _some, style=lambda r: "dim"),
            Column("env_steps", "env\nsteps", shown=whole),
            Column("train_return", "train\nreturn"),
            *_estimate("learned", "evaluated\nreturn"),
            *_estimate("random", "random in\nits place"),
            *_estimate("untrained", "untrained in its place"),
            *_estimate("advantage", f"advantage\n{over}", signed_lines),
            *_estimate("over_untrained", f"over untrained {over}", signed_lines),
            Column("judgement", "verdict", css="text words"),
            Column(
                "judged_seeds",
                "verdict",
                value=lambda row: row.judgement,
                text=judged,
                style=lambda row: _VERDICT_STYLES.get(row.judgement, ""),
                css="text",
            ),
        ),
        tuple(judged_rows(report)),
    )


def servers_grid(report: Report) -> Grid:
    """Returns the table of servers for pages."""
    return servers_table(report).grid(
        "name algorithm agents env_steps train_return learned random untrained advantage "
        "over_untrained judgement",
        {"advantage": "advantage", "over_untrained": "over untrained"},
    )


def metrics_table(report: Report) -> Table[MetricResult]:
    """Returns a row for each metric, and whose it is."""
    return table(
        "name of train evaluated random",
        report.metrics,
        name="metric",
        of=Column(value=lambda metric: metric.server_id or "episode"),
        evaluated=Column(heading=f"evaluated\n[95 %, {report.interval_unit}]", css="words"),
        random=Column(heading="random\nin place", text=_at_random, css="words", gap=", "),
    )


def _estimate(
    name: str, heading: str, shown: Callable[[Estimate], Shown] = interval_lines
) -> Iterator[Column[JudgedRow]]:
    """Yields a column of means with their intervals, which may go on below: five are side by side;
    and ``NAME_mean``, without them."""

    def value(row: JudgedRow) -> Estimate | None:
        return getattr(row.final, name, None)

    def mean(row: JudgedRow) -> float | None:
        found = value(row)
        return found.mean if found else None

    yield Column(name, heading, value, shown, css="words")
    yield Column(f"{name}_mean", heading, mean)


def _some(agents: Sequence[str]) -> tuple[str, ...]:
    """Agents; of many, the first few, since ``summary.md`` has them all."""
    if len(agents) <= _MAX_LISTED:
        return tuple(agents)
    num_shown = _MAX_LISTED - 1
    return *agents[:num_shown], f"and {len(agents) - num_shown} more"


def _at_random(metric: MetricResult) -> Shown:
    """A metric's mean with a server's agents at random; of an episode's, for each server."""
    if metric.server_id is None:
        return tuple(f"{number(x.mean)} ({s})" for s, x in metric.random.items()) or MISSING
    return number(metric.random[metric.server_id].mean) if metric.random else MISSING
