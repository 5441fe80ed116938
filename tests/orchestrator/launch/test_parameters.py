"""Schedules follow the env steps, and lessons follow the episodes that were played."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxrl.client.adapters.simulation import COMMON
from muxrl.orchestrator.launch.parameters import ParameterProgress, scheduled
from muxrl.orchestrator.launch.tally import Tally

AGENTS = {"red": ["a", "b"], "blue": ["c"]}


@pytest.mark.parametrize(
    ("env_steps", "value"), [(0, 1.0), (50, 1.5), (100, 2.0), (300, 1.0), (10**9, 1.0)]
)
def test_a_schedule_is_linear_between_its_points(env_steps: int, value: float) -> None:
    assert scheduled([[0, 1.0], [100, 2.0], [300, 1.0]], env_steps) == value


@given(st.integers(0, 200), st.integers(0, 200))
def test_a_schedule_of_whole_numbers_stays_whole_and_rises_with_its_points(a: int, b: int) -> None:
    low, high = (scheduled([[0, 1], [100, 5]], n) for n in sorted([a, b]))
    assert isinstance(low, int)
    assert 1 <= low <= high <= 5


def progress(**rule: Any) -> ParameterProgress:
    lessons = {"lessons": [1, 2, 3], "next_when": {"metric": "win", "episodes": 4, **rule}}
    return ParameterProgress({"speed": lessons, "size": 7}, AGENTS)


def play(one: ParameterProgress, speed: float, *wins: float, **returns: float) -> int:
    """Notes some episodes; returns the lesson after them."""
    for win in wins:
        one.note(returns, {"win": {COMMON: win}, "speed": {COMMON: speed}})
    return int(one.now(0)["speed"])


def test_the_next_lesson_begins_once_a_whole_window_of_this_one_is_good_enough() -> None:
    one = progress(at_least=0.75)
    assert one.now(0) == {"speed": 1, "size": 7}
    assert play(one, 1, 1, 1, 1) == 1  # three episodes are no whole window
    assert play(one, 1, 0) == 2
    assert play(one, 1, 1, 1, 1, 1) == 2  # these episodes were begun in the lesson before
    assert play(one, 2, 0, 0, 1, 1) == 2
    assert play(one, 2, 1) == 3
    assert play(one, 3, 0, 0, 0, 0) == 3  # a lesson never goes back
    assert play(one, 3, 1, 1, 1, 1) == 3  # this is the last lesson


def test_a_report_may_have_more_episodes_than_a_lesson_needs() -> None:
    assert play(progress(at_least=1), 1, *[1] * 100) == 2


def test_a_metric_may_have_to_fall_or_be_a_servers_return() -> None:
    assert play(progress(at_most=0.25), 1, 0, 0, 0, 1) == 2
    of_red = progress(metric="return", of="red", at_least=3)
    assert play(of_red, 1, 0, 0, 0, 0, a=1.0, b=1.9, c=9.0) == 1
    assert play(of_red, 1, 0, 0, 0, 0, a=1.0, b=2.0, c=-9.0) == 2
    assert play(progress(metric="return", at_least=3), 1, 0, 0, 0, 0, a=1, b=1, c=1) == 2


def test_a_resumed_run_keeps_its_lesson_and_its_window() -> None:
    before = Tally(progress(at_least=0.75))
    play(before.parameters, 1, 1, 1, 1, 1)
    play(before.parameters, 2, 1, 1, 1)
    after = Tally(progress(at_least=0.75))
    after.restore(json.loads(json.dumps(before.state())))
    assert after.parameters.now(0)["speed"] == 2
    assert play(after.parameters, 2, 0) == 3
    fewer = Tally(ParameterProgress({"speed": {"lessons": [1], "next_when": {}}}, AGENTS))
    fewer.restore(before.state())
    assert fewer.parameters.now(0) == {"speed": 1}
    without = before.state()
    del without["parameters"]  # versions before parameters wrote no such key
    again = Tally(progress(at_least=0.75))
    again.restore(without)
    assert again.parameters.now(0)["speed"] == 1
