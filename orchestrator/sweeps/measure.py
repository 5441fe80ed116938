"""A sweep's metric of a run: one number, by which trials are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from muxrl.orchestrator.config.schema import RETURN, TOTAL
from muxrl.orchestrator.records.rows import EvaluationRow, JointRow
from muxrl.orchestrator.records.series import mean_of_episodes, mean_over, metric_over
from muxrl.orchestrator.sweeps.schema import MetricConfig


class Metric:
    """What a metric is worth in rows of one run.

    Args:
        config: which metric.
        servers: of the run, by id, with their ``agents``.
    """

    def __init__(self, config: MetricConfig, servers: Mapping[str, Any]) -> None:
        self._config = config
        self._agents = None if config.of == TOTAL else list(servers[config.of].agents)

    def evaluated(self, row: EvaluationRow) -> float | None:
        """Returns that of an evaluation; None: no episode had it, or somebody was replaced."""
        agents, name = self._agents, self._config.name
        if row.replaced is not None:
            return None
        if name != RETURN:
            return metric_over(row.metrics.get(name, {}), agents, mean_of_episodes)
        names = list(row.returns) if agents is None else agents
        return mean_of_episodes(row.returns, names, is_sum=agents is None)

    def trained(self, row: JointRow) -> float | None:
        """Returns that of recent training episodes; None, too, where one's is no number."""
        agents, name = self._agents, self._config.name
        if name != RETURN:
            return metric_over(row.metrics.get(name, {}), agents, mean_over)
        if self._config.of in row.returns:  # not in those of older runs
            return row.returns[self._config.of]
        means = row.episode_return_mean
        known = [
            v for who in (means if agents is None else agents) if (v := means.get(who)) is not None
        ]
        total = sum(known)
        if not known or not math.isfinite(total):
            return None
        return total if agents is None else total / len(known)
