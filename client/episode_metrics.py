"""What only the simulation knows of an episode: numbers in its infos, reduced to one for each.

An info is an agent's, or of the whole episode: then it stands under `COMMON`, as in RLlib.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


METRIC_NAMES = "letters, digits, '_', '-', '.' and '/', up to 100"
_NAME = re.compile(r"(?=.{1,100}$)[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")


def is_metric_name(name: str) -> bool:
    """Whether a metric can have that name in tables, rows and on the command line."""
    return _NAME.fullmatch(name) is not None


class MetricCollector:
    """The metrics of one episode, from the infos of its steps.

    Args:
        ways: by metric, one of `WAYS`; "a/b" is what is under "b" in the dict under "a". Other
            keys of infos are not looked at.
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
                holder, key = _holder(info, name)
                if key in holder:
                    value = _number(name, who, holder[key])
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


class VectorMetrics:
    """The metrics of the open episodes of ``N`` copies, from infos that are arrays.

    Args:
        ways: see `MetricCollector`.
        num_copies: N.
    """

    def __init__(self, ways: Mapping[str, str], num_copies: int) -> None:
        self._ways = ways
        self._num_copies = num_copies
        self._values: dict[tuple[str, str], NDArray[np.float64]] = {}
        self._counts: dict[tuple[str, str], NDArray[np.int64]] = {}

    def add(
        self, infos: Mapping[str, Mapping[str, Any]], is_over: np.ndarray | None = None
    ) -> None:
        """Takes in the infos of a step; see `VectorStep`.

        Args:
            infos: where there is a ``final_info``, the others of a copy whose episode is over are
                the next one's, of its reset, and do not count.
            is_over: bool ``[N]``: whose.

        Raises:
            SimulationError: a metric is no array of numbers, one for each copy.
        """
        for who, info in infos.items():
            final = info.get("final_info")
            for part in (info, final):
                if isinstance(part, Mapping):
                    for name in self._ways:
                        holder, key = _holder(part, name)
                        if key not in holder:
                            continue
                        there = holder.get(f"_{key}")
                        if part is info and isinstance(final, Mapping) and is_over is not None:
                            there = ~is_over & (True if there is None else there)
                        self._take(name, who, holder[key], there)

    def _take(self, name: str, who: str, given: Any, there: Any) -> None:
        try:
            new = np.asarray(given.detach().cpu() if hasattr(given, "detach") else given, float)
        except (TypeError, ValueError):
            new = np.empty(0)
        if new.size != self._num_copies:
            raise SimulationError(
                f"metric {name!r} in the infos of {who!r} is {given!r:.80}; expected an array of "
                f"{self._num_copies} numbers, one for each copy"
            )
        new = new.reshape(self._num_copies)
        has = np.isfinite(new) if there is None else np.isfinite(new) & np.asarray(there, bool)
        key = name, who
        if key not in self._values:
            self._values[key] = np.zeros(self._num_copies)
            self._counts[key] = np.zeros(self._num_copies, np.int64)
        before, is_first = self._values[key], self._counts[key] == 0
        reduction = self._ways[name].rpartition(" of ")[2]
        if reduction == "last":
            now = new
        elif reduction in ("max", "min"):
            now = (np.maximum if reduction == "max" else np.minimum)(before, new)
        else:
            now = before + np.where(has, new, 0.0)
        self._values[key] = np.where(has, np.where(is_first, new, now), before)
        self._counts[key] += has

    def take(self, copy: int, num_steps: int) -> EpisodeMetrics:
        """Returns the metrics of a copy's episode of so many env steps, and begins anew."""
        collector = MetricCollector(self._ways)
        for (name, who), counts in self._counts.items():
            if counts[copy]:
                is_mean = self._ways[name].rpartition(" of ")[2] == "mean"
                value = self._values[name, who][copy] / (counts[copy] if is_mean else 1)
                collector.add({who: {name: value}})
        self.clear(copy)
        return collector.result(num_steps)

    def clear(self, copy: int) -> None:
        """Begins anew for a copy."""
        for counts in self._counts.values():
            counts[copy] = 0


def _holder(info: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], str]:
    """Returns the mapping that has a metric, and its key there: "a/b" may be b of the info's a."""
    head, _, rest = name.partition("/")
    inner = info.get(head)
    if rest and name not in info and isinstance(inner, Mapping):
        return _holder(inner, rest)
    return info, name


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
        cure = "leave it out of simulation.metrics, or have the simulation give a number"
        if isinstance(value, Mapping) and value:
            cure = f"name what is in it, such as '{name}/{next(iter(value))}'"
        raise SimulationError(
            f"metric {name!r} in the info of {who!r} is {value!r:.80}; expected a number or None; "
            f"{cure}"
        ) from None
    return number if math.isfinite(number) else None


def overall(by_agent: Mapping[str, float]) -> float:
    """Returns a metric as one number: that of the whole episode, else the mean over its agents."""
    if COMMON in by_agent:
        return by_agent[COMMON]
    return sum(by_agent.values()) / len(by_agent)
