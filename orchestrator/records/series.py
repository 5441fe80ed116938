"""Puts a run's rows together as curves and means, for its report and its live page.

This module alone defines what the mean over agents is, and over episodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.simulation import COMMON
from muxrl.orchestrator.config.schema import RETURN
from muxrl.orchestrator.records.rows import AgentReturns, EvaluationRow, JointRow, Means
from muxrl.orchestrator.records.thinned import Thinned

Floats = NDArray[np.float64]
T = TypeVar("T")


def mean_over(means: Means, agents: Iterable[str]) -> float | None:
    """Returns the mean over those agents that have a finite number; None if none has."""
    found = map(means.get, agents)
    known = [value for value in found if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None


def metric_over(
    by_agent: Mapping[str, T],
    agents: Collection[str] | None,
    mean: Callable[[Mapping[str, T], Sequence[str]], float | None],
) -> float | None:
    """Returns a metric as one number; None if there is no value.

    Args:
        by_agent: of each agent, and of the whole episode as `COMMON`: a mean, or values by episode.
        agents: whose mean is returned, or the episode's own value if none of them has one; None:
            the episode's own value, or the mean over all agents if it has none.
        mean: `mean_over`, or `mean_of_episodes`.
    """
    of_episode = mean(by_agent, (COMMON,))
    if agents is None and of_episode is not None:
        return of_episode
    of_agents = mean(by_agent, list(by_agent if agents is None else agents))
    return of_episode if of_agents is None else of_agents


def returns_by_episode(
    by_agent: AgentReturns, agents: Sequence[str], *, is_sum: bool = False
) -> Floats:
    """Returns for each episode the mean return over some agents, or their sum.

    An agent that was not in an episode does not count there. An episode without any of the agents
    is NaN and keeps its index, so that evaluations on the same episodes can be paired.

    Args:
        by_agent: may lack some of the agents, and may have fewer episodes for some than for others.
        agents: the agents.
        is_sum: whether to add the returns up instead of averaging them.

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
    """Returns the mean of `returns_by_episode` over episodes; None if all are NaN."""
    episodes = returns_by_episode(by_agent, agents, is_sum=is_sum)
    return float(np.nanmean(episodes)) if np.isfinite(episodes).any() else None


def evaluated(
    row: EvaluationRow, name: str, agents: Collection[str] | None, most: int | None = None
) -> float | None:
    """Returns a metric of an evaluation as one number; None if no episode has a value.

    Args:
        row: a row of the evaluation.
        name: name of the metric, or `RETURN`.
        agents: see `metric_over`; a return is the mean over these agents, None: the sum over all.
        most: how many episodes count, the first ones; None: all.
    """
    given = row.returns if name == RETURN else row.metrics.get(name, {})
    by_agent = {agent_id: values[:most] for agent_id, values in given.items()}
    if name != RETURN:
        return metric_over(by_agent, agents, mean_of_episodes)
    names = list(by_agent if agents is None else agents)
    return mean_of_episodes(by_agent, names, is_sum=agents is None)


class MetricCurves:
    """Keeps curves of the simulation's metrics: of whole episodes, and of each server's agents.

    Args:
        servers: server to its agents.
        most: how many curves are kept, the first ones; None: all.
        most_points: how many points each curve keeps.
    """

    def __init__(
        self, servers: Mapping[str, Sequence[str]], most: int | None = None, *, most_points: int
    ) -> None:
        self._agents: dict[str | None, Sequence[str]] = {None: (COMMON,)}
        self._agents.update(servers)
        self._most = most
        self._most_points = most_points
        self.curves: dict[tuple[str, str | None], Thinned] = {}
        """By metric and server (None: of the whole episode); no curve is empty."""

    def add(
        self,
        env_steps: int,
        metrics: Mapping[str, Mapping[str, T]],
        reduce: Callable[[Mapping[str, T], Sequence[str]], float | None],
        known: Mapping[str, Means] = MappingProxyType({}),
    ) -> None:
        """Adds a point to the curve of each metric and server.

        The value is that in `known`, by metric and server, or else what `reduce` returns for the
        server's agents; None adds no point.
        """
        for name, by_agent in metrics.items():
            of_server = known.get(name, {})
            for server_id, agents in self._agents.items():
                value = None if server_id is None else of_server.get(server_id)
                if value is None:
                    value = reduce(by_agent, agents)
                if value is None:
                    continue
                if (name, server_id) not in self.curves:
                    if self._most is not None and len(self.curves) >= self._most:
                        continue
                    self.curves[name, server_id] = Thinned(most=self._most_points)
                self.curves[name, server_id].add((env_steps, value))


class TrainingSeries:
    """Keeps curves of training, exploration included, from joint rows.

    Args:
        groups: by name in `JointRow.returns`: agents whose mean return is a curve.
        metrics: the curves of metrics, to which rows add, too.
        most_points: how many points each curve keeps.
    """

    def __init__(
        self, groups: Mapping[str, Sequence[str]], metrics: MetricCurves, *, most_points: int
    ) -> None:
        self._groups = groups
        self._metrics = metrics
        self.returns = {key: Thinned(most=most_points) for key in groups}

    def add(self, row: JointRow) -> None:
        """Adds a row's values to the curves."""
        for key, agents in self._groups.items():
            value = row.returns.get(key)
            if not row.returns:  # an older run
                value = mean_over(row.episode_return_mean, agents)
            if value is not None:
                self.returns[key].add((row.env_steps, value))
        self._metrics.add(row.env_steps, row.metrics, mean_over, row.group_metrics)
