"""What a simulation says of an episode at its end, beside returns."""

from __future__ import annotations

import math
from collections.abc import Container

from muxrl.client.adapters.simulation import COMMON
from muxrl.client.episode_metrics import RESERVED_METRICS, EpisodeMetrics, is_metric_name
from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.messages import EndEpisode


def metrics_of(item: EndEpisode, agents: Container[str]) -> EpisodeMetrics:
    """Returns the metrics that an end brings, without those that are not finite.

    Raises:
        ValueMismatch: one has a name of muxrl's own, or is of an unknown agent.
    """
    metrics: EpisodeMetrics = {}
    for name, value in item.metrics.items():
        if name in RESERVED_METRICS or not is_metric_name(name):
            raise ValueMismatch(
                f"{name!r} cannot name a metric",
                expected="letters, digits, '_', '-' and '.', up to 100, other than "
                + " and ".join(map(repr, RESERVED_METRICS)),
                got=repr(name),
            )
        by_agent = value if isinstance(value, dict) else {COMMON: value}
        for agent_id in by_agent:
            if agent_id != COMMON and agent_id not in agents:
                raise ValueMismatch(
                    f"metric {name!r}: no server has an agent {agent_id!r}",
                    agent_id=agent_id,
                    expected=f"{COMMON!r}, or an agent",
                    got=repr(agent_id),
                )
        known = {who: number for who, number in by_agent.items() if math.isfinite(number)}
        if known:
            metrics[name] = known
    return metrics
