"""A sweep's metric of a run: one number, by which trials are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from muxrl.client.adapters.simulation import COMMON
from muxrl.orchestrator.config.schema import RETURN
from muxrl.orchestrator.records.rows import EvaluationRow, JointRow
from muxrl.orchestrator.records.series import means_of
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
    by_agent = row.returns if config.name == RETURN else row.metrics.get(config.name, {})
    return combine(config, means_of(by_agent), agents)


def trained_value(
    config: MetricConfig, row: JointRow, agents: Sequence[str] | None
) -> float | None:
    """Returns the same of recent training episodes."""
    is_return = config.name == RETURN
    means = row.episode_return_mean if is_return else row.metrics.get(config.name, {})
    return combine(config, means, agents)


def combine(
    config: MetricConfig, means: Mapping[str, float | None], agents: Sequence[str] | None
) -> float | None:
    """Returns the values of some agents as one, None without any or where one is no number."""
    known = {who: value for who, value in means.items() if value is not None}
    values = [value for who, value in known.items() if who != COMMON]
    if agents is not None:
        values = [known[agent] for agent in agents if agent in known]
    if COMMON in known and (agents is None or not values):
        values = [known[COMMON]]
    total = sum(values)
    if not values or not math.isfinite(total):
        return None
    return total if config.name == RETURN and agents is None else total / len(values)
