"""A sweep's metric of a run: one number, by which trials are compared."""

from __future__ import annotations

import math
from collections.abc import Sequence

from muxrl.orchestrator.config.schema import RETURN
from muxrl.orchestrator.records.rows import EvaluationRow, JointRow
from muxrl.orchestrator.records.series import mean_of_episodes, mean_over, metric_over
from muxrl.orchestrator.sweeps.schema import MetricConfig


def evaluated_value(
    config: MetricConfig, row: EvaluationRow, agents: Sequence[str] | None
) -> float | None:
    """Returns the metric of an evaluation.

    Args:
        config: which metric.
        row: with all agents as learned.
        agents: of the server or role; None: of all.

    Returns:
        None where no episode had it.
    """
    if config.name != RETURN:
        return metric_over(row.metrics.get(config.name, {}), agents, mean_of_episodes)
    names = list(row.returns) if agents is None else agents
    return mean_of_episodes(row.returns, names, is_sum=agents is None)


def trained_value(
    config: MetricConfig, row: JointRow, agents: Sequence[str] | None
) -> float | None:
    """Returns the same of recent training episodes; None, too, where one's is no number."""
    if config.name != RETURN:
        return metric_over(row.metrics.get(config.name, {}), agents, mean_over)
    if config.of in row.returns:  # not in those of older runs
        return row.returns[config.of]
    means = row.episode_return_mean
    known = [
        v for who in (means if agents is None else agents) if (v := means.get(who)) is not None
    ]
    total = sum(known)
    if not known or not math.isfinite(total):
        return None
    return total if agents is None else total / len(known)
