"""A sweep's metric of a record of a run: one number, by which trials are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from muxrl.client.adapters.simulation import COMMON
from muxrl.orchestrator.sweeps.schema import RETURN, MetricConfig


def evaluated_value(
    config: MetricConfig, record: Mapping[str, Any], agents: Sequence[str] | None
) -> float | None:
    """Returns the metric of an evaluation record.

    Args:
        config: which metric.
        record: see `muxrl.orchestrator.records.metrics`.
        agents: of the server or role; None: of all.

    Returns:
        None where no episode had it.
    """
    values = record["returns"] if config.name == RETURN else _metric(config, record)
    # Episodes without an agent hold no return of it.
    known = {a: [r for r in rs if r is not None] for a, rs in values.items()}
    return combine(config, {a: sum(rs) / len(rs) for a, rs in known.items() if rs}, agents)


def trained_value(
    config: MetricConfig, record: Mapping[str, Any], agents: Sequence[str] | None
) -> float | None:
    """Returns the same of a joint record, which is of recent training episodes."""
    returns = record.get("episode_return_mean") or {}
    means = returns if config.name == RETURN else _metric(config, record)
    return combine(config, means, agents)


def _metric(config: MetricConfig, record: Mapping[str, Any]) -> Mapping[str, Any]:
    of_name: Mapping[str, Any] = (record.get("metrics") or {}).get(config.name, {})
    return of_name


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
