"""The metrics of an episode: numbers from the simulation's infos, each reduced to one.

An info belongs to an agent, or to the whole episode; then it is under `COMMON`, as in RLlib.
"""

from __future__ import annotations

import math
import operator
import re
from array import array
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.simulation import COMMON, SimulationError

EPISODE_LENGTH = "episode_length"
"""The metric that every episode has: its env steps."""
TRUNCATED = "truncated"
"""Another metric that every episode has: 1 if an agent was truncated, else 0."""
OWN_METRICS = (EPISODE_LENGTH, TRUNCATED)

RESERVED_METRICS = ("return", *OWN_METRICS)
"""Names that a metric of the simulation cannot have."""

_JOIN: Mapping[str, Callable[[Any, Any], Any]] = {
    "last": lambda before, new: new,
    "sum": operator.add,
    "mean": operator.add,
    "max": np.maximum,
    "min": np.minimum,
}
_OF_AGENTS: Mapping[str, Callable[[Collection[float]], float]] = {
    "sum": sum,
    "mean": lambda values: sum(values) / len(values),
    "max": max,
    "min": min,
}
REDUCTIONS = tuple(_JOIN)
"""Ways in which the numbers of an episode become one."""
WAYS = (*REDUCTIONS, *(f"{over} of {each}" for over in _OF_AGENTS for each in REDUCTIONS))
"""Reductions that a config may name for a metric. "max of sum" makes the largest of the agents'
sums the metric of the whole episode; without "of" the mean over agents is taken."""

EpisodeMetrics = dict[str, dict[str, float]]
"""By metric, then by agent id, or by `COMMON` for the whole episode."""


METRIC_NAMES = "letters, digits, '_', '-', '.' and '/', up to 100"
_NAME = re.compile(r"(?=.{1,100}$)[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")


def is_metric_name(name: str) -> bool:
    """Whether a metric may have this name, for tables, rows and the command line."""
    return _NAME.fullmatch(name) is not None


class MetricCollector:
    """Collects the metrics of the open episodes of ``N`` copies from the infos of their steps.

    Args:
        ways: by metric: one of `WAYS`. The metric "a/b" is under "b" in the dict under "a". Other
            keys of infos are ignored.
        num_copies: N.
    """

    def __init__(self, ways: Mapping[str, str], num_copies: int = 1) -> None:
        split = {name: way.rpartition(" of ") for name, way in ways.items()}
        self._reductions = {name: each for name, (_, _, each) in split.items()}
        self._of_agents = {name: _OF_AGENTS[over] for name, (over, _, _) in split.items() if over}
        self._num_copies = num_copies
        self._columns: dict[tuple[str, str], _Column] = {}

    def add(self, infos: Mapping[str, Any], copy: int = 0) -> None:
        """Adds the infos of a step of one copy.

        Raises:
            SimulationError: an info is no dict, or a metric is no number.
        """
        for who, info in infos.items():
            if not info:
                continue
            if not isinstance(info, Mapping):
                raise SimulationError(
                    f"the info of {who!r} is of type {type(info).__name__}; expected a dict "
                    f"that may have the metrics {list(self._reductions)}"
                )
            for name in self._reductions:
                holder, key = _holder(info, name)
                if key in holder:
                    value = _number(name, who, holder[key])
                    if value is not None:
                        self._column(name, who).add(copy, value)

    def add_arrays(
        self, infos: Mapping[str, Mapping[str, Any]], is_over: np.ndarray | None = None
    ) -> None:
        """Adds the infos of a step of all copies; see `VectorStep`.

        Args:
            infos: if they have a ``final_info``, the other infos of a copy whose episode is over
                come from the next episode's reset, and do not count.
            is_over: bool ``[N]``: whether the copy's episode is over.

        Raises:
            SimulationError: a metric is no array with a number for each copy.
        """
        for who, info in infos.items():
            final = info.get("final_info")
            for part in (info, final):
                if isinstance(part, Mapping):
                    for name in self._reductions:
                        holder, key = _holder(part, name)
                        if key not in holder:
                            continue
                        there = holder.get(f"_{key}")
                        if part is info and isinstance(final, Mapping) and is_over is not None:
                            there = ~is_over & (True if there is None else there)
                        new = self._numbers(name, who, holder[key])
                        has = np.isfinite(new)
                        if there is not None:
                            has &= np.asarray(there, bool)
                        self._column(name, who).add_all(new, has)

    def _numbers(self, name: str, who: str, given: Any) -> NDArray[np.float64]:
        try:
            new = np.asarray(given.detach().cpu() if hasattr(given, "detach") else given, float)
        except (TypeError, ValueError):
            new = np.empty(0)
        if new.size != self._num_copies:
            raise SimulationError(
                f"metric {name!r} in the infos of {who!r} is {given!r:.80}; expected an array of "
                f"{self._num_copies} numbers, one for each copy"
            )
        return new.reshape(self._num_copies)

    def _column(self, name: str, who: str) -> _Column:
        column = self._columns.get((name, who))
        if column is None:
            column = _Column(self._reductions[name], self._num_copies)
            self._columns[name, who] = column
        return column

    def result(self, copy: int = 0) -> EpisodeMetrics:
        """Returns the metrics of a copy's episode."""
        metrics: EpisodeMetrics = {}
        for (name, who), column in self._columns.items():
            if count := column.counts[copy]:
                num = count if self._reductions[name] == "mean" else 1
                metrics.setdefault(name, {})[who] = column.values[copy] / num
        for name, combine in self._of_agents.items():
            if (values := metrics.get(name)) and COMMON not in values:
                values[COMMON] = combine(values.values())
        return metrics

    def clear(self, copy: int = 0) -> None:
        """Forgets the numbers of a copy's episode."""
        for column in self._columns.values():
            column.counts[copy] = 0


class _Column:
    """One metric of one agent in each copy: the value so far, and how many numbers it joins."""

    def __init__(self, reduction: str, num_copies: int) -> None:
        self._join = _JOIN[reduction]
        # Fast to access element by element; numpy views of its memory serve all copies at once.
        self.values = array("d", bytes(8 * num_copies))
        self.counts = array("q", bytes(8 * num_copies))

    def add(self, copy: int, value: float) -> None:
        if self.counts[copy]:
            value = self._join(self.values[copy], value)
        self.values[copy] = value
        self.counts[copy] += 1

    def add_all(self, new: NDArray[np.float64], has: NDArray[np.bool_]) -> None:
        values, counts = np.frombuffer(self.values), np.frombuffer(self.counts, np.int64)
        joined = np.where(counts > 0, self._join(values, new), new)
        np.copyto(values, joined, where=has)
        counts += has


def _holder(info: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], str]:
    """Returns the mapping that would have a metric, and the metric's key in it; see "a/b" above."""
    head, _, rest = name.partition("/")
    inner = info.get(head)
    if rest and name not in info and isinstance(inner, Mapping):
        return _holder(inner, rest)
    return info, name


def _number(name: str, who: str, value: Any) -> float | None:
    """Returns a metric's value; None if the value is None, NaN or infinite.

    Raises:
        SimulationError: the value is no number.
    """
    if value is None:
        return None
    try:
        number = float(value)  # takes bools, and numpy's scalars and arrays of one number, too
        if isinstance(value, str):
            raise TypeError
    except (TypeError, ValueError):
        remedy = "leave it out of simulation.metrics, or have the simulation give a number"
        if isinstance(value, Mapping) and value:
            remedy = f"name a number inside it, such as '{name}/{next(iter(value))}'"
        raise SimulationError(
            f"metric {name!r} in the info of {who!r} is {value!r:.80}; expected a number or None; "
            f"{remedy}"
        ) from None
    return number if math.isfinite(number) else None


def overall(by_agent: Mapping[str, float]) -> float:
    """Returns the value of the whole episode if there is one, else the mean over agents."""
    if COMMON in by_agent:
        return by_agent[COMMON]
    return sum(by_agent.values()) / len(by_agent)
