from __future__ import annotations

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


def test_the_evaluation_is_no_part_of_the_training() -> None:
    moments = [moment(0, 100, a=100), moment(5, 600, {"evaluation": 1}, a=600)]
    assert agreement(moments, num_envs=4).num_exact == 1
