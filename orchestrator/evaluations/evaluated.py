"""Results of evaluation episodes, with intervals, and their tables in the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from muxrl.orchestrator.measure.rliable import interquartile_mean
from muxrl.orchestrator.measure.statistics import (
    Estimate,
    Unit,
    are_proportions,
    are_won_or_lost,
    estimate_of,
    mean_interval,
)
from muxrl.orchestrator.records.rows import AgentReturns, Metrics
from muxrl.orchestrator.records.series import returns_by_episode
from muxrl.orchestrator.reports.plain_table import grid_table
from muxrl.orchestrator.reports.table import Cell, Column, Columns, Grid, GridRow, Row, grid
from muxrl.orchestrator.supervise.episodes import truncated_text
from muxrl.protocol.patterns import unnumbered


@dataclass(frozen=True)
class Returns:
    """Returns of some agents over the episodes.

    Attributes:
        agents: the agents; an agent that took no part in an episode does not count in it.
        mean: the mean over episodes of the mean over the agents.
        low, high: the ends of its 95 % interval over episodes; None where there is none, see
            `has_interval`.
        deviation: standard deviation over the episodes, unbiased; None for a single episode.
        interquartile_mean: interquartile mean over the episodes.
        total: the mean over episodes of the sum over the agents, with its interval, whose ends are
            NaN where there is none.
    """

    agents: tuple[str, ...]
    mean: float
    low: float | None
    high: float | None
    deviation: float | None
    interquartile_mean: float
    total: Estimate

    @property
    def estimate(self) -> Estimate:
        """The mean with its interval, in the form of `total`."""
        ends = (math.nan if end is None else end for end in (self.low, self.high))
        return Estimate(self.mean, *ends)


@dataclass(frozen=True)
class EvaluatedServer:
    """How one server played.

    Attributes:
        algorithm: the algorithm that trained the server's policies, or the fixed one that played.
        rule: "greedy" or "sampled" for trained policies, "fixed" for others.
        checkpoint: folder of the policies; "": there is none.
        returns: of the server's agents.
    """

    algorithm: str
    rule: str
    checkpoint: str
    returns: Returns


@dataclass(frozen=True)
class EvaluationResult:
    """The results of all episodes.

    Attributes:
        run: name of the run.
        assignment: which algorithm served which agents, replacements included.
        seeds: by episode: the seed with which the simulation was reset.
        num_steps: by episode: its env steps.
        episode_returns: by agent and episode: the sum of raw rewards.
        servers: by server id: its results.
        agents: by agent: its returns.
        groups: by "server/group": returns of teams with more than one agent.
        roles: by role: returns of numbered agents, "prey" for "prey_0" and "prey_1".
        everybody: returns of all agents together.
        replaced: by server: what played its agents instead.
        path: of the written file; None: none was written.
        episode_metrics: the simulation's metrics of each episode.
        num_truncated: number of episodes that had not ended after `evaluation.max_episode_steps`.
        metrics: statistics of these metrics: by metric for whole episodes, and by "metric/server"
            for the mean over the server's agents.
    """

    run: str
    assignment: str
    seeds: tuple[int, ...]
    num_steps: tuple[int, ...]
    episode_returns: AgentReturns
    servers: Mapping[str, EvaluatedServer]
    agents: Mapping[str, Returns]
    groups: Mapping[str, Returns]
    roles: Mapping[str, Returns]
    everybody: Returns
    replaced: Mapping[str, str]
    path: Path | None = None
    episode_metrics: Metrics = field(default_factory=dict)
    metrics: Mapping[str, Returns] = field(default_factory=dict)
    num_truncated: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Returns the result as plain data for JSON, without `path`."""
        fields = asdict(self)
        del fields["path"]
        return fields


def returns_of(
    episode_returns: AgentReturns, agents: Sequence[str], *, is_metric: bool = False
) -> Returns:
    """Returns the statistics of these agents.

    Args:
        episode_returns: of each agent in each episode.
        agents: to include.
        is_metric: whether the values are a metric. A metric that is 0 or 1 in every episode is a
            proportion; returns are one only if both 0 and 1 occur.

    Raises:
        ValueError: none of the agents was in any episode.
    """
    means, totals = (
        returns_by_episode(episode_returns, agents, is_sum=is_sum) for is_sum in (False, True)
    )
    means, totals = means[np.isfinite(means)], totals[np.isfinite(totals)]
    if not len(means):
        raise ValueError(f"no episode had any of the agents {', '.join(agents)}")
    is_proportion = are_proportions([means]) if is_metric else are_won_or_lost([means])
    estimate = estimate_of([means], Unit.EPISODES, is_proportion=is_proportion)
    has_interval = math.isfinite(estimate.low)
    return Returns(
        agents=tuple(agents),
        mean=estimate.mean,
        low=estimate.low if has_interval else None,
        high=estimate.high if has_interval else None,
        deviation=float(means.std(ddof=1)) if len(means) > 1 else None,
        interquartile_mean=interquartile_mean(means),
        total=mean_interval([totals]),
    )


def roles_by_name(agents: Sequence[str]) -> dict[str, list[str]]:
    """Returns agents by role, which is the name before a number.

    Only the simulation knows the roles, so they are guessed from the agents' names. {} if there is
    only one role, or if each agent would be its own role.
    """
    roles: dict[str, list[str]] = {}
    for agent in agents:
        roles.setdefault(unnumbered(agent), []).append(agent)
    return roles if 1 < len(roles) < len(agents) else {}


def _row(who: str, returns: Returns, rule: str = "", *, is_metric: bool = False) -> Row:
    """Returns a row of the table.

    A metric has no total: all agents may report the same number, whose sum means nothing.
    """
    total = None if is_metric or len(returns.agents) == 1 else returns.total
    return {
        "who": who,
        "rule": rule,
        "return": returns.estimate,
        "std": returns.deviation,
        "IQM": returns.interquartile_mean,
        "total": total,
    }


_SHOWN: Columns = {
    "who": Column(css="text"),
    "rule": Column("actions", str, css="text", is_whole=True),
    "return": "return\n[95 %, episodes]",
    "total": "team total\n[95 %, episodes]",
}


def _grid(rows: Sequence[Row]) -> Grid:
    return grid(rows, "who rule return std IQM total", _SHOWN)


def print_evaluation(result: EvaluationResult, console: Console | None = None) -> None:
    """Prints every server, agent, team and role, and how the numbers were made."""
    shown = _grid(())
    for title, rows in _sections(result):
        if rows:
            heading = GridRow((Cell((title,), style="dim"),))
            shown += Grid(shown.headings, (heading, *_grid(rows).rows))
    title = f"{result.run}: {result.assignment}"
    (console or Console()).print(grid_table(shown, title, _caption(result)))


def _sections(result: EvaluationResult) -> Iterator[tuple[str, list[Row]]]:
    yield (
        "servers",
        [_row(f"{s} {x.algorithm}", x.returns, x.rule) for s, x in result.servers.items()],
    )
    shown = {server.returns.agents for server in result.servers.values()}
    for title, found in (("teams", result.groups), ("roles", result.roles)):
        # A team or role with the same agents as a server or team has the same numbers.
        new = {name: returns for name, returns in found.items() if returns.agents not in shown}
        shown |= {returns.agents for returns in new.values()}
        yield title, [_row(name, returns) for name, returns in new.items()]
    yield "agents", [_row(name, returns) for name, returns in result.agents.items()]
    if len(result.servers) > 1:
        yield "everybody", [_row("all agents", result.everybody)]
    metrics = result.metrics.items()
    yield "metrics", [_row(name, values, is_metric=True) for name, values in metrics]


def _caption(result: EvaluationResult) -> str:
    first, last = result.seeds[0], result.seeds[-1]
    at_each = zip(*result.episode_returns.values(), strict=True)
    num_dropped = sum(set(returns) == {None} for returns in at_each)
    dropped = (
        f" {num_dropped} of them ended at a bad value, and do not count." if num_dropped else ""
    )
    if num := result.num_truncated:
        dropped += f" {num:,} {truncated_text(max(result.num_steps))}."
    replaced = "".join(f" In the place of {s}: {what}." for s, what in result.replaced.items())
    of_run = [s for s in result.servers if s not in result.replaced]
    scripted = [s for s in of_run if result.servers[s].algorithm == "SCRIPTED"]
    forgot = f" The modules of {', '.join(scripted)} begin without what they remembered in the run."
    return (
        f"{len(result.seeds)} episodes, seeds {first} to {last}.{replaced}"
        f"{forgot if scripted else ''}{dropped} "
        "Return: the sum of an agent's raw rewards in an episode; for several agents, the mean "
        "over them, and their sum as team total. Intervals: 95 % over episodes: what to expect of "
        "these policies in other episodes. IQM: mean of the middle half of the episodes. Metrics: "
        "the simulation's numbers of an episode, or the mean over the server's agents."
    )
