"""Reads the metrics that a simulation sends with the end of an episode."""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any

from muxrl.client.adapters.simulation import COMMON
from muxrl.client.episode_metrics import (
    METRIC_NAMES,
    RESERVED_METRICS,
    EpisodeMetrics,
    is_metric_name,
)
from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.messages import EndEpisode
from muxrl.protocol.values import Mismatch, number
from muxrl.servers.episodes.step_check import mismatch


def metrics_of(item: EndEpisode, agents: Container[str]) -> EpisodeMetrics:
    """Returns the metrics of an end, without null, NaN and infinity.

    Raises:
        ValueMismatch: a metric has a name that muxrl reserves, an unknown agent, or a value that is
            no number.
    """
    metrics: EpisodeMetrics = {}
    for name, value in item.metrics.items():
        if name in RESERVED_METRICS or not is_metric_name(name):
            raise ValueMismatch(
                f"{name!r} cannot name a metric",
                expected=f"{METRIC_NAMES}, other than {', '.join(map(repr, RESERVED_METRICS))}",
                got=repr(name),
            )
        by_agent = value if isinstance(value, dict) else {COMMON: value}
        for agent_id in by_agent:
            if agent_id != COMMON and agent_id not in agents:
                raise ValueMismatch(
                    f"metric {name!r}: no server has an agent {agent_id!r}",
                    agent_id=agent_id,
                    expected=f"{COMMON!r} (the whole simulation), or an agent",
                    got=repr(agent_id),
                )
        known = {
            who: n for who, one in by_agent.items() if (n := _read(name, who, one)) is not None
        }
        if known:
            metrics[name] = known
    return metrics


def _read(name: str, who: str, value: Any) -> float | None:
    """Returns a metric's value; None for null, NaN and infinities."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    try:
        return number(value)
    except Mismatch as error:
        raise mismatch(f"metric {name!r}", error, None if who == COMMON else who) from None
