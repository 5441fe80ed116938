"""A run's rows put together as they come: for its report, once it is over, and for its live page.

Here is the one rule for what the mean over agents is, and over episodes.
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
    """Returns the mean over those of some agents that have one; None if none has."""
    found = map(means.get, agents)
    known = [value for value in found if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None


def metric_over(
    by_agent: Mapping[str, T],
    agents: Collection[str] | None,
    mean: Callable[[Mapping[str, T], Sequence[str]], float | None],
) -> float | None:
    """Returns a metric as one number; None if nothing has it.

    Args:
        by_agent: a mean by agent, or each one's episodes; under `COMMON` of the whole episode.
        agents: the mean over those of them that have it, else that of the episode; None: that of
            the episode, else the mean over all agents.
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


def evaluated(
    row: EvaluationRow, name: str, agents: Collection[str] | None, most: int | None = None
) -> float | None:
    """Returns a metric of an evaluation as one number; None if no episode has it.

    Args:
        row: of the evaluation.
        name: of the metric, or `RETURN`.
        agents: see `metric_over`; of returns it is the mean over them, None: the sum over all.
        most: episodes that count, the first ones; None: all.
    """
    given = row.returns if name == RETURN else row.metrics.get(name, {})
    by_agent = {agent_id: values[:most] for agent_id, values in given.items()}
    if name != RETURN:
        return metric_over(by_agent, agents, mean_of_episodes)
    names = list(by_agent if agents is None else agents)
    return mean_of_episodes(by_agent, names, is_sum=agents is None)


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
        known: Mapping[str, Means] = MappingProxyType({}),
    ) -> None:
        """Adds what `reduce` makes of each metric of some agents, a mean or None, unless that is
        `known` by metric and server."""
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
            if not row.returns:  # an older run
                value = mean_over(row.episode_return_mean, agents)
            if value is not None:
                self.returns[key].add((row.env_steps, value))
        self._metrics.add(row.env_steps, row.metrics, mean_over, row.group_metrics)
