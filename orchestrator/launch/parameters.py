"""The parameters of a run's training episodes: the state of their schedules and lessons.

Simulations get them about once a second (`Simulations.set_parameters`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from muxrl.client.adapters.simulation import COMMON
from muxrl.client.episode_metrics import EpisodeMetrics
from muxrl.orchestrator.config.parameters import has_lessons, is_schedule
from muxrl.orchestrator.config.schema import RETURN, TOTAL
from muxrl.orchestrator.records.series import mean_over, metric_over

_NUM_EPISODES = 50


class Lessons:
    """The lessons of one parameter. The next lesson begins, for good, once a metric is good enough.

    Only episodes of the present lesson count, so each lesson takes at least `episodes` episodes.

    Args:
        name: the parameter's name.
        given: its entry in the config.
        agents: agents by server id, for a metric of one server.
    """

    def __init__(
        self, name: str, given: Mapping[str, Any], agents: Mapping[str, Collection[str]]
    ) -> None:
        self._name = name
        self._lessons: Sequence[float] = given["lessons"]
        self._rule: Mapping[str, Any] = given["next_when"]
        of = self._rule.get("of", TOTAL)
        self._agents = None if of == TOTAL else agents[of]
        self.number = 0
        """Number of the present lesson."""
        self.window: deque[float] = deque(maxlen=self._rule.get("episodes", _NUM_EPISODES))
        """The metric in the newest episodes of the present lesson."""

    @property
    def value(self) -> float:
        return self._lessons[self.number]

    def restore(self, number: int, window: Sequence[float]) -> None:
        """Continues from a checkpoint's state; an edited config may have fewer lessons."""
        self.number = min(number, len(self._lessons) - 1)
        self.window.extend(window)

    def note(self, returns: Mapping[str, float], metrics: EpisodeMetrics) -> None:
        """Counts an episode that has ended."""
        is_last = self.number == len(self._lessons) - 1
        if is_last or metrics.get(self._name, {}).get(COMMON) != self.value:
            return
        value = self._value_in(returns, metrics)
        if value is None:
            return
        self.window.append(value)
        mean = sum(self.window) / len(self.window)
        is_far = (
            mean >= self._rule["at_least"]
            if "at_least" in self._rule
            else mean <= self._rule["at_most"]
        )
        if is_far and len(self.window) == self.window.maxlen:
            self.number += 1
            self.window.clear()

    def _value_in(self, returns: Mapping[str, float], metrics: EpisodeMetrics) -> float | None:
        if self._rule["metric"] == RETURN:
            mine = [r for a, r in returns.items() if self._agents is None or a in self._agents]
            return sum(mine) if mine else None
        return metric_over(metrics.get(self._rule["metric"], {}), self._agents, mean_over)


class ParameterProgress:
    """All parameters of one run.

    Args:
        given: the checked `simulation.parameters` of the config.
        agents: agents by server id.
    """

    def __init__(self, given: Mapping[str, Any], agents: Mapping[str, Collection[str]]) -> None:
        self._given = given
        self._lessons = {
            name: Lessons(name, one, agents) for name, one in given.items() if has_lessons(one)
        }

    def state(self) -> dict[str, Any]:
        """Returns the state of all lessons, for JSON."""
        return {
            name: {"number": one.number, "window": list(one.window)}
            for name, one in self._lessons.items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state` has returned."""
        for name in state.keys() & self._lessons.keys():
            self._lessons[name].restore(**state[name])

    def note(self, returns: Mapping[str, float], metrics: EpisodeMetrics) -> None:
        """Counts an episode that has ended."""
        for lessons in self._lessons.values():
            lessons.note(returns, metrics)

    def now(self, env_steps: int) -> dict[str, Any]:
        """Returns parameters for the next episodes; see `muxrl.client.episode_parameters.draw`."""
        new = {n: scheduled(g, env_steps) if is_schedule(g) else g for n, g in self._given.items()}
        return new | {name: lessons.value for name, lessons in self._lessons.items()}


def scheduled(points: Sequence[Sequence[float]], env_steps: int) -> float:
    """Returns the value of a piecewise linear schedule, rounded if all of its values are whole."""
    at, values = zip(*points, strict=True)
    value = float(np.interp(env_steps, at, values))
    return round(value) if all(isinstance(one, int) for one in values) else value
