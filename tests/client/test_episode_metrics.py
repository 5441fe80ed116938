"""Metrics of an episode, against values that are worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.scripted_servers import CountingSimulation, World

from muxrl.client.adapters.simulation import COMMON, SimulationError, StepResult
from muxrl.client.env_loop import EnvLoop, EpisodeResult, SimulationFailed
from muxrl.client.episode_metrics import REDUCTIONS, MetricCollector, overall

REDUCE = {"last": lambda v: v[-1], "sum": sum, "mean": np.mean, "max": max, "min": min}
numbers = st.floats(-1e6, 1e6)


def collected(reductions: dict[str, str], *steps: dict[str, Any]) -> Any:
    collector = MetricCollector(reductions)
    for infos in steps:
        collector.add(infos)
    return collector.result()


def collected_in_arrays(reduction: str, values: list[float | None]) -> Any:
    """Returns the metric of the second of three copies; the others have other values."""
    collector = MetricCollector({"x": reduction}, 3)
    for number, value in enumerate(values):
        nothing = {} if number % 2 else {"_x": np.array([True, value is not None, True])}
        x = np.array([7.0, math.nan if value is None else value, -7.0])
        collector.add_arrays({"a": {"x": x, **nothing}})
    return collector.result(1)


@given(st.sampled_from(REDUCTIONS), st.lists(st.none() | numbers, min_size=1))
def test_each_reduction_is_over_the_steps_that_have_a_number(
    reduction: str, values: list[float | None]
) -> None:
    found = collected({"x": reduction}, *({"a": {"x": value}} for value in values))
    assert collected_in_arrays(reduction, values) == found
    known = [value for value in values if value is not None]
    if known:
        assert found["x"]["a"] == pytest.approx(REDUCE[reduction](known))
    else:
        assert "x" not in found


def test_agents_and_the_whole_episode_are_kept_apart() -> None:
    found = collected(
        {"hits": "sum", "win": "last"},
        {"a": {"hits": 1, "other": "not asked for"}, "b": {"hits": 3}},
        {"a": {"hits": 1}, COMMON: {"win": True, "hits": np.int64(9)}, "b": {}},
    )
    assert found == {"hits": {"a": 2.0, "b": 3.0, COMMON: 9.0}, "win": {COMMON: 1.0}}


@pytest.mark.parametrize(
    ("way", "expected"), [("sum of sum", 6.0), ("max of mean", 3.0), ("min of last", 1.0)]
)
def test_agents_are_combined_as_asked_for(way: str, expected: float) -> None:
    steps = ({"a": {"hits": 2}, "b": {"hits": 3}}, {"a": {"hits": 1}})
    found = collected({"hits": way}, *steps)["hits"]
    assert (overall(found), found.keys()) == (expected, {"a", "b", COMMON})
    assert overall({"a": found["a"], "b": found["a"] + 2.0}) == found["a"] + 1.0, "else their mean"
    told = collected({"hits": way}, *steps, {COMMON: {"hits": 7}})["hits"]
    assert overall(told) == 7.0, "what the simulation says of the episode counts"


def test_a_metric_that_is_no_number_yet_is_left_out() -> None:
    values = [None, math.nan, math.inf, np.float32(2.0), np.array(4.0)]
    found = collected({"x": "mean"}, *({"a": {"x": value}} for value in values))
    assert found["x"] == {"a": 3.0}


@pytest.mark.parametrize("value", ["won", "1.0", [1.0, 2.0], np.zeros(2), object()])
def test_a_metric_that_can_be_no_number_is_refused(value: Any) -> None:
    with pytest.raises(SimulationError, match=r"metric 'x' in the info of 'a' is .*expected a num"):
        collected({"x": "last"}, {"a": {"x": value}})


def test_a_metric_inside_another_mapping_is_named_by_its_path() -> None:
    info = {"stats": {"goals": {"own": 2}, "of/f": 1}, "a/b": 3, "a": {"b": 4}}
    ways = {"stats/goals/own": "sum", "a/b": "last", "stats/none": "last"}
    found = collected(ways, {"x": info}, {"x": info}, {"x": {}})
    assert found["stats/goals/own"] == {"x": 4.0}
    assert found["a/b"] == {"x": 3.0}
    assert "stats/none" not in found
    with pytest.raises(SimulationError, match="name a number inside it, such as 'stats/goals'"):
        collected({"stats": "last"}, {"x": info})
    many = MetricCollector({"stats/n": "last"}, 2)
    many.add_arrays({"x": {"stats": {"n": np.array([1.0, 2.0]), "_n": np.array([False, True])}}})
    assert many.result(copy=1)["stats/n"] == {"x": 2.0}
    assert "stats/n" not in many.result(copy=0)


def test_an_info_that_is_no_dict_is_refused() -> None:
    with pytest.raises(SimulationError, match=r"info of 'a' is of type list; expected a dict"):
        collected({"x": "last"}, {"a": ["x"]})


class Telling(CountingSimulation):
    """A simulation each of whose steps joins two of its own, and whose infos count them."""

    infos: Iterator[Any]

    def reset(self, seed: int | None = None) -> Any:
        self.infos = iter(range(100))
        observations, _ = super().reset(seed)
        return observations, {COMMON: {"steps": 1_000}}

    def step(self, actions: dict[str, Any]) -> StepResult:
        first, second = ({COMMON: {"steps": 1, "at": next(self.infos)}} for _ in range(2))
        return super().step(actions)._replace(infos=second, earlier_infos=(first,))


OWN = {"episode_length": {COMMON: 6.0}, "truncated": {COMMON: 0.0}}


def play(simulation: CountingSimulation, metrics: dict[str, str] | None) -> list[EpisodeResult]:
    world = World()
    world.play([simulation], [0, 1], metrics=metrics)
    return world.results


def test_the_loop_counts_every_step_of_each_episode_and_no_reset() -> None:
    results = play(Telling(num_steps=3), {"steps": "sum", "at": "last"})
    whole = {"steps": {COMMON: 6.0}, "at": {COMMON: 5.0}}
    assert [result.metrics for result in results] == [whole | OWN, whole | OWN]


def test_the_loop_looks_at_nothing_that_was_not_asked_for() -> None:
    results = play(Telling(num_steps=3), None)
    assert [result.metrics for result in results] == [OWN] * 2


class Wrong(CountingSimulation):
    def step(self, actions: dict[str, Any]) -> StepResult:
        return super().step(actions)._replace(infos={"a": {"win": "yes"}})


def test_the_loop_ends_on_a_metric_that_is_no_number() -> None:
    with pytest.raises(SimulationFailed, match="metric 'win' in the info of 'a' is 'yes'"):
        play(Wrong(), {"win": "last"})


def test_all_steps_that_a_simulation_joins_are_env_steps() -> None:
    loop = EnvLoop([Telling(num_steps=3)], World().client)
    loop.run(should_stop=lambda: loop.num_env_steps >= 7)
    assert loop.num_env_steps == 8
