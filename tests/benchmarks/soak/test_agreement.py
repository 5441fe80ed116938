from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.soak.agreement import Counted, Moment, agreement


def moment(
    time_s: float, played: int, restarts: dict[str, int] | None = None, **counted: int
) -> Moment:
    servers = {name: Counted(steps, steps // 10) for name, steps in counted.items()}
    return Moment(time_s, Counted(played, played // 10), servers, restarts or {})


def test_what_agrees_exactly() -> None:
    # Server b has less in all: it went back to a checkpoint once.
    found = agreement([moment(0, 100, a=100, b=40), moment(5, 600, a=600, b=540)], num_envs=4)
    assert (found.num_exact, found.num_bounded, found.problems) == (1, 0, [])


@pytest.mark.parametrize("steps", [599, 601])
def test_one_step_lost_or_twice_is_found(steps: int) -> None:
    found = agreement([moment(0, 100, a=100), moment(5, 600, a=steps)], num_envs=4)
    (problem,) = found.problems
    assert "between 0 s and 5 s (lost: none) server 'a' counted" in problem
    assert "expected exactly as many" in problem


@pytest.mark.parametrize(
    ("lost", "steps", "is_right"),
    [
        ("a", 100, True),  # it went back to the checkpoint, and has not gone on
        ("a", 99, False),
        ("b", 596, True),  # a step of each environment that b did not answer
        ("b", 595, False),
        ("simulation-0", 600 + 1_004, True),  # played after its last report: 10 s at 100 a second
        ("simulation-0", 600 + 1_005, False),
    ],
)
def test_what_is_promised_after_a_loss(lost: str, steps: int, is_right: bool) -> None:
    moments = [moment(0, 100, a=100), moment(5, 600, {lost: 1}, a=steps)]
    found = agreement(moments, num_envs=4)
    assert (found.num_exact, found.num_bounded) == (0, 1)
    assert (found.problems == []) == is_right


@pytest.mark.parametrize(
    ("restarts", "counted", "is_right"),
    [
        ({"a": 1}, Counted(549, 53), True),  # the rest of the episode and the step that found out
        ({"a": 1}, Counted(548, 53), False),
        ({"a": 1}, Counted(549, 52), False),
        ({"a": 1}, Counted(601, 54), False),
        ({}, Counted(600, 54), True),
        ({}, Counted(549, 53), False),
    ],
)
def test_a_loss_that_is_noticed_after_a_checkpoint(
    restarts: dict[str, int], counted: Counted, is_right: bool
) -> None:
    before = Moment(0, Counted(0, 0), {"a": Counted(0, 0)}, restarts, Counted(7, 0))
    after = Moment(5, Counted(600, 54), {"a": counted}, restarts, Counted(57, 1))
    assert (agreement([before, after], num_envs=1).problems == []) == is_right
    assert agreement([before, replace(before, time_s=1)], num_envs=1).num_exact == 1
    assert agreement([before, after], num_envs=1).num_exact == 0


def test_the_evaluation_is_no_part_of_the_training() -> None:
    moments = [moment(0, 100, a=100), moment(5, 600, {"evaluation": 1}, a=600)]
    assert agreement(moments, num_envs=4).num_exact == 1
