"""A sweep's metric of a run: one number, by which trials are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from muxrl.orchestrator.config.schema import RETURN
from muxrl.orchestrator.records.rows import EvaluationRow, JointRow
from muxrl.orchestrator.records.series import mean_of_episodes, metric_of_episodes, metric_over
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
    if config.name == RETURN:
        names = [*row.returns] if agents is None else agents
        value = mean_of_episodes(row.returns, names, is_sum=agents is None)
        return value if value is not None and math.isfinite(value) else None
    return metric_of_episodes(row.metrics.get(config.name, {}), agents)


def trained_value(
    config: MetricConfig, row: JointRow, agents: Sequence[str] | None
) -> float | None:
    """Returns the same of recent training episodes."""
    is_return = config.name == RETURN
    if is_return and config.of in row.returns:  # not in those of older runs
        return row.returns[config.of]
    means = row.episode_return_mean if is_return else row.metrics.get(config.name, {})
    return combine(config, means, agents)


def combine(
    config: MetricConfig, means: Mapping[str, float | None], agents: Sequence[str] | None
) -> float | None:
    """Returns the values of some agents as one, None without any or where one is no number."""
    if config.name != RETURN:
        return metric_over(means, agents)
    values = [
        v for who in (means if agents is None else agents) if (v := means.get(who)) is not None
    ]
    total = sum(values)
    if not values or not math.isfinite(total):
        return None
    return total if agents is None else total / len(values)
