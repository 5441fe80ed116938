"""A run's rows put together as they come: for its report, once it is over, and for its live page.

Here is the one rule for each question: which rows are one evaluation, what the mean over agents is,
and over episodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.simulation import COMMON
from muxrl.orchestrator.records.conditions import Condition
from muxrl.orchestrator.records.rows import AgentReturns, EvaluationRow, JointRow, Means, Metrics
from muxrl.orchestrator.records.thinned import Thinned

Floats = NDArray[np.float64]

_UNRECORDED = 10_000
"""The first seed of evaluations whose rows do not say it: those of all runs were the same then."""


def mean(values: Iterable[float | None]) -> float | None:
    """Returns the mean of those that are finite numbers; None if there are none."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None


def mean_over(means: Means, agents: Iterable[str]) -> float | None:
    """Returns the mean over those of some agents that have one; None if none has."""
    return mean(means.get(agent) for agent in agents)


def metric_over(means: Means, agents: Collection[str] | None) -> float | None:
    """Returns a metric as one number; None if nothing has it.

    Args:
        means: by agent, and under `COMMON` that of the whole episode.
        agents: the mean over those of them that have it, else that of the episode; None: that of
            the episode, else the mean over all agents.
    """
    of_episode = means.get(COMMON)
    if agents is None:
        return mean_over(means, means) if of_episode is None else of_episode
    of_agents = mean_over(means, agents)
    return of_episode if of_agents is None else of_agents


def means_of(by_agent: AgentReturns) -> dict[str, float]:
    """Returns by agent the mean over its episodes, without agents that were in none."""
    means = {who: mean(values) for who, values in by_agent.items()}
    return {who: value for who, value in means.items() if value is not None}


def returns_by_episode(
    by_agent: AgentReturns, agents: Sequence[str], *, is_sum: bool = False
) -> Floats:
    """Returns for each episode the mean return over some agents, or their sum.

    An agent that was not in an episode does not count there. An episode with none of the agents is
    NaN and keeps its place, so that evaluations on the same episodes can be paired.

    Args:
        by_agent: may lack some of the agents, and hold fewer episodes for some than for others.
        agents: whose returns.
        is_sum: whether to add them up instead of averaging.

    Returns:
        ``[num_episodes]``; empty if `by_agent` has none of the agents.
    """
    rows = [by_agent[agent] for agent in agents if agent in by_agent]
    if not rows:
        return np.empty(0)
    table = np.full((len(rows), max(map(len, rows))), math.nan)
    for row, values in zip(table, rows, strict=True):
        row[: len(values)] = [math.nan if value is None else value for value in values]
    counts = np.isfinite(table).sum(axis=0)
    totals = np.where(counts > 0, np.nansum(table, axis=0), math.nan)
    return totals if is_sum else totals / np.maximum(counts, 1)


def mean_of_episodes(
    by_agent: AgentReturns, agents: Sequence[str], *, is_sum: bool = False
) -> float | None:
    """Returns the mean of `returns_by_episode` over episodes; None if no episode has any."""
    episodes = returns_by_episode(by_agent, agents, is_sum=is_sum)
    return float(np.nanmean(episodes)) if np.isfinite(episodes).any() else None


def metric_of_episodes(by_agent: AgentReturns, agents: Sequence[str] | None) -> float | None:
    """Returns what `metric_over` does of an evaluation's episodes, as `mean_of_episodes` does."""
    of_episode = mean_of_episodes(by_agent, [COMMON])
    if agents is None and of_episode is not None:
        return of_episode
    of_agents = mean_of_episodes(by_agent, list(by_agent) if agents is None else agents)
    return of_episode if of_agents is None else of_agents


@dataclass(frozen=True)
class EvaluationPoint:
    """One evaluation: the same weights under every condition that was measured."""

    env_steps: int
    """Env steps of training before it."""
    time_s: float = math.nan
    """Seconds of training before it; NaN where it was not recorded."""
    returns: dict[str | None, AgentReturns] = field(default_factory=dict)
    """By who was replaced, see `muxrl.orchestrator.records.conditions`: a server's id where its
    agents acted at random; None: all acted as learned."""
    metrics: dict[str | None, Metrics] = field(default_factory=dict)
    """As `returns`; empty in runs that were made before there were metrics."""
    sides: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    """By server whose agents were found to play against each other: side to agents."""
    first_seed: int | None = None
    """Of its episodes' resets; None: those of an external simulation, which are its own."""
    logged_agents: set[str] = field(default_factory=set)
    """Of whose actions the simulation chose any itself, in any condition."""

    def add(self, row: EvaluationRow) -> None:
        """Adds a condition, in the place of an earlier row of it."""
        self.returns[row.replaced] = row.returns
        self.metrics[row.replaced] = row.metrics
        self.logged_agents.update(row.logged_agents)
        condition = Condition.of_row(row)
        if condition.server_id is not None and condition.side:
            self.sides.setdefault(condition.server_id, {})[condition.side] = condition.agents

    def episodes(
        self,
        agents: Sequence[str],
        replaced: str | None = None,
        metric: str = "",
        *,
        is_sum: bool = False,
    ) -> Floats:
        """Returns what some agents had in each episode of a condition, see `returns_by_episode`.

        Args:
            agents: whose; `COMMON` for a metric of the whole episode.
            replaced: the condition's key.
            metric: its name; "": their returns.
            is_sum: whether it is their sum, not their mean.
        """
        by_agent = self.returns.get(replaced, {})
        if metric:
            by_agent = self.metrics.get(replaced, {}).get(metric, {})
        return returns_by_episode(by_agent, agents, is_sum=is_sum)

    def returns_of(self, agents: Sequence[str], replaced: str | None) -> Floats | None:
        """Returns the same of returns; None if no episode had any of the agents."""
        returns = self.episodes(agents, replaced)
        return returns if np.isfinite(returns).any() else None


class EvaluationSeries:
    """A run's evaluations, from their rows.

    A condition seen again begins the next evaluation, so that a point holds together even where
    training went on meanwhile and its rows differ by a few env steps. Two evaluations at the same
    env step (the last of training and the final one) are one; the later counts. Those by another
    rule of acting than the newest are left out.

    Args:
        most: how many points are kept, the newest ones; None: all.
        is_external: whether somebody else's simulation played them.
    """

    def __init__(self, most: int | None = None, *, is_external: bool = False) -> None:
        self._most = most
        self._first_seed = None if is_external else _UNRECORDED
        self.should_explore: bool | None = None
        """Whether policies sampled their actions; None: nothing was evaluated."""
        self._by_rule: dict[bool, dict[int, EvaluationPoint]] = {}
        self._newest: dict[bool, EvaluationPoint] = {}
        self._seen: dict[bool, set[str | None]] = {}

    @property
    def points(self) -> tuple[EvaluationPoint, ...]:
        """By env steps, no two at the same."""
        by_env_steps = {} if self.should_explore is None else self._by_rule[self.should_explore]
        return tuple(by_env_steps[env_steps] for env_steps in sorted(by_env_steps))

    def add(self, row: EvaluationRow) -> EvaluationPoint:
        """Returns the point that the row belongs to."""
        rule = self.should_explore = row.should_explore
        points, seen = self._by_rule.setdefault(rule, {}), self._seen.setdefault(rule, set())
        if rule not in self._newest or row.replaced in seen:
            seen.clear()
            time_s = math.nan if row.time_s is None else row.time_s
            first_seed = self._first_seed if row.first_seed is None else row.first_seed
            new = EvaluationPoint(row.env_steps, time_s, first_seed=first_seed)
            self._newest[rule] = points.setdefault(row.env_steps, new)
        if self._most is not None and len(points) > self._most:
            del points[next(iter(points))]
        seen.add(row.replaced)
        self._newest[rule].add(row)
        return self._newest[rule]


T = TypeVar("T")


class MetricCurves:
    """Curves of the simulation's metrics: of whole episodes, and of each server's agents.

    Args:
        servers: server to its agents.
        most: how many curves are kept, the first ones; None: all.
        most_points: of each curve.
    """

    def __init__(
        self, servers: Mapping[str, Sequence[str]], most: int | None = None, *, most_points: int
    ) -> None:
        self._agents: dict[str | None, Sequence[str]] = {None: (COMMON,)}
        self._agents.update(servers)
        self._most = most
        self._most_points = most_points
        self.curves: dict[tuple[str, str | None], Thinned] = {}
        """By metric, and server; None: of the episode. None of them is empty."""

    def add(
        self,
        env_steps: int,
        metrics: Mapping[str, Mapping[str, T]],
        reduce: Callable[[Mapping[str, T], Sequence[str]], float | None],
    ) -> None:
        """Adds what `reduce` makes of each metric of some agents: a mean, or None."""
        for name, by_agent in metrics.items():
            for server_id, agents in self._agents.items():
                if (value := reduce(by_agent, agents)) is None:
                    continue
                if (name, server_id) not in self.curves:
                    if self._most is not None and len(self.curves) >= self._most:
                        continue
                    self.curves[name, server_id] = Thinned(most=self._most_points)
                self.curves[name, server_id].add((env_steps, value))


class TrainingSeries:
    """Curves of training, exploration included, from joint rows.

    Args:
        groups: of agents, by their name in `JointRow.returns`, whose mean return is a curve each.
        metrics: takes the metrics.
        most_points: of each curve.
    """

    def __init__(
        self, groups: Mapping[str, Sequence[str]], metrics: MetricCurves, *, most_points: int
    ) -> None:
        self._groups = groups
        self._metrics = metrics
        self.returns = {key: Thinned(most=most_points) for key in groups}

    def add(self, row: JointRow) -> None:
        """Adds a row."""
        for key, agents in self._groups.items():
            value = row.returns.get(key)
            if value is None:  # an older run
                value = mean_over(row.episode_return_mean, agents)
            if value is not None:
                self.returns[key].add((row.env_steps, value))
        self._metrics.add(row.env_steps, row.metrics, mean_over)
