"""What only the simulation knows of an episode: numbers in its infos, reduced to one for each.

An info is an agent's, or of the whole episode: then it stands under `COMMON`, as in RLlib.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from muxrl.client.adapters.simulation import COMMON, SimulationError

EPISODE_LENGTH = "episode_length"
"""The metric that every episode has: its env steps."""

RESERVED_METRICS = ("return", EPISODE_LENGTH)
"""Names that a metric of the simulation's cannot have."""

REDUCTIONS = ("last", "sum", "mean", "max", "min")
"""How the numbers of an episode become one."""
_OF_AGENTS: Mapping[str, Callable[[Collection[float]], float]] = {
    "sum": sum,
    "mean": lambda values: sum(values) / len(values),
    "max": max,
    "min": min,
}
WAYS = (*REDUCTIONS, *(f"{over} of {each}" for over in _OF_AGENTS for each in REDUCTIONS))
"""What a config may say of a metric: "max of sum" is the largest of the agents' sums, and becomes
the whole episode's. Otherwise agents are combined by their mean."""

EpisodeMetrics = dict[str, dict[str, float]]
"""By metric, then by agent id, or `COMMON` where it is of the whole episode."""


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def is_metric_name(name: str) -> bool:
    """Whether a metric can have that name in tables, files and on the command line."""
    return _NAME.fullmatch(name) is not None


class MetricCollector:
    """The metrics of one episode, from the infos of its steps.

    Args:
        ways: by metric, one of `WAYS`. Other keys of infos are not looked at.
    """

    def __init__(self, ways: Mapping[str, str]) -> None:
        split = {name: way.rpartition(" of ") for name, way in ways.items()}
        self._reductions = {name: each for name, (_, _, each) in split.items()}
        self._of_agents = {name: _OF_AGENTS[over] for name, (over, _, _) in split.items() if over}
        self._values: EpisodeMetrics = {}
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, infos: Mapping[str, Any]) -> None:
        """Takes in the infos of a step.

        Raises:
            SimulationError: an info is no dict, or a metric no number.
        """
        for who, info in infos.items():
            if not info:
                continue
            if not isinstance(info, Mapping):
                raise SimulationError(
                    f"the info of {who!r} is of type {type(info).__name__}; expected a dict, in "
                    f"which to find the metrics {list(self._reductions)}"
                )
            for name, reduction in self._reductions.items():
                if name in info:
                    value = _number(name, who, info[name])
                    if value is not None:
                        self._take(name, reduction, who, value)

    def _take(self, name: str, reduction: str, who: str, value: float) -> None:
        values = self._values.setdefault(name, {})
        before = values.get(who)
        if reduction == "mean":
            self._counts[name, who] = self._counts.get((name, who), 0) + 1
        if before is None or reduction == "last":
            values[who] = value
        elif reduction == "max":
            values[who] = max(before, value)
        elif reduction == "min":
            values[who] = min(before, value)
        else:
            values[who] = before + value

    def result(self, num_steps: int) -> EpisodeMetrics:
        """Returns the metrics of an episode of so many env steps."""
        metrics = {name: dict(values) for name, values in self._values.items()}
        for (name, who), count in self._counts.items():
            metrics[name][who] /= count
        for name, combine in self._of_agents.items():
            if (values := metrics.get(name)) and COMMON not in values:
                values[COMMON] = combine(values.values())
        return {**metrics, EPISODE_LENGTH: {COMMON: float(num_steps)}}


def _number(name: str, who: str, value: Any) -> float | None:
    """Returns a metric's value, None where there is none: None, NaN, or an infinity.

    Raises:
        SimulationError: it is no number.
    """
    if value is None:
        return None
    try:
        number = float(value)  # bools, and numpy's scalars and arrays of one number, too
        if isinstance(value, str):
            raise TypeError
    except (TypeError, ValueError):
        raise SimulationError(
            f"metric {name!r} in the info of {who!r} is {value!r:.80}; expected a number or None; "
            "leave it out of simulation.metrics, or have the simulation give a number"
        ) from None
    return number if math.isfinite(number) else None


def overall(by_agent: Mapping[str, float]) -> float:
    """Returns a metric as one number: that of the whole episode, else the mean over its agents."""
    if COMMON in by_agent:
        return by_agent[COMMON]
    return sum(by_agent.values()) / len(by_agent)
