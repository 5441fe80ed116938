import pytest

from muxrl.orchestrator.runs.time_left import StopCondition, time_left_s


def test_the_first_condition_to_hold_counts() -> None:
    steps = StopCondition(now=40_000, limit=100_000, per_s=200.0)  # 300 s
    clock = StopCondition(now=200.0, limit=450.0, per_s=1.0)  # 250 s
    assert time_left_s([steps, clock]) == pytest.approx(250.0)
    assert time_left_s([steps]) == pytest.approx(300.0)


def test_nothing_is_left_once_a_condition_holds() -> None:
    assert time_left_s([StopCondition(5, 5, 0.0), StopCondition(0, 10, 1.0)]) == 0.0
    assert time_left_s([StopCondition(6, 5, 1.0)]) == 0.0


def test_nobody_can_tell_without_conditions_or_pace() -> None:
    assert time_left_s([]) is None
    assert time_left_s([StopCondition(0, 100_000, 0.0)]) is None
    assert time_left_s([StopCondition(0, 100, 0.0), StopCondition(0.0, 60.0, 1.0)]) == 60.0
