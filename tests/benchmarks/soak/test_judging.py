"""The soak judges whether counts agree, faults are of all kinds, and processes do not grow."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from benchmarks.soak.agreement import Counted, Moment, agreement
from benchmarks.soak.faults import Fault, Kind, faults
from benchmarks.soak.samples import Bound, Life, Sample, Samples, fitted_growth


def moment(
    time_s: float, played: int, restarts: dict[str, int] | None = None, **counted: int
) -> Moment:
    servers = {name: Counted(steps, steps // 10) for name, steps in counted.items()}
    return Moment(time_s, Counted(played, played // 10), servers, restarts or {})


def test_counts_of_servers_that_agree_exactly() -> None:
    # Server b has counted fewer in all: it went back to a checkpoint once.
    found = agreement([moment(0, 100, a=100, b=40), moment(5, 600, a=600, b=540)], num_envs=4)
    assert (found.num_exact, found.num_bounded, found.problems) == (1, 0, [])


@pytest.mark.parametrize("steps", [599, 601])
def test_a_step_that_is_lost_or_counted_twice_is_found(steps: int) -> None:
    found = agreement([moment(0, 100, a=100), moment(5, 600, a=steps)], num_envs=4)
    (problem,) = found.problems
    assert "between 0 s and 5 s (lost: none) server 'a' counted" in problem
    assert "expected exactly as many" in problem


@pytest.mark.parametrize(
    ("lost", "steps", "is_right"),
    [
        ("a", 100, True),  # it is back at its checkpoint, and has not gone on yet
        ("a", 99, False),
        ("b", 596, True),  # b did not answer one step of each environment
        ("b", 595, False),
        ("simulation-0", 600 + 1_004, True),  # after its last report: 10 s at 100 steps a second
        ("simulation-0", 600 + 1_005, False),
    ],
)
def test_counts_after_a_loss_stay_within_their_bounds(
    lost: str, steps: int, is_right: bool
) -> None:
    moments = [moment(0, 100, a=100), moment(5, 600, {lost: 1}, a=steps)]
    found = agreement(moments, num_envs=4)
    assert (found.num_exact, found.num_bounded) == (0, 1)
    assert (found.problems == []) == is_right


@pytest.mark.parametrize(
    ("restarts", "counted", "is_right"),
    [
        ({"a": 1}, Counted(549, 53), True),  # the episode's rest, and the step that noticed it
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


def test_evaluation_steps_are_not_counted_as_training() -> None:
    moments = [moment(0, 100, a=100), moment(5, 600, {"evaluation": 1}, a=600)]
    assert agreement(moments, num_envs=4).num_exact == 1


def life(rss_mib: Callable[[float], float], descriptors: Callable[[float], int]) -> Life:
    """Returns ten minutes of a process, with a sample every two seconds."""
    times = np.arange(0.0, 600.0, 2.0)
    samples = [Sample(t, rss_mib(t), descriptors(t), 20) for t in times]
    return Life("ppo", 1, samples)


def test_a_sample_has_the_memory_descriptors_and_threads_of_a_process() -> None:
    before = Sample.of(os.getpid(), 0.0)
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    pipe = os.pipe()
    after = Sample.of(os.getpid(), 1.0)
    is_over.set()
    thread.join()
    for descriptor in pipe:
        os.close(descriptor)
    assert after.threads == before.threads + 1
    assert after.descriptors == before.descriptors + 2
    assert after.rss_mib > 10.0


def test_growth_is_that_of_a_fitted_line() -> None:
    assert fitted_growth([10.0, 12.0, 14.0], [1.0, 2.0, 3.0]) == pytest.approx(2.0)
    assert fitted_growth([10.0], [1.0]) == 0.0


def test_growth_in_the_warm_up_and_swings_afterwards_are_no_leak() -> None:
    flat = life(lambda t: 400.0 + min(t, 150.0) + 10.0 * np.sin(t), lambda t: 50 + int(t) % 4)
    assert flat.problems(Bound()) == []


def test_leaks_are_found() -> None:
    # In 400 s after the warm-up of 200 s: 80 MiB, and 56 are allowed; 10 descriptors, and 8 are.
    leaky = life(lambda t: 360.0 + 0.2 * t, lambda t: int(t / 40.0))
    problems = leaky.problems(Bound())
    assert [problem.split(" grew")[0] for problem in problems] == [
        "ppo (pid 1): rss_mib",
        "ppo (pid 1): descriptors",
    ]


def test_a_process_that_takes_a_new_name_begins_a_new_life() -> None:
    samples = Samples()
    for at_s, name in enumerate(["worker", "worker", "ppo", "ppo", "ppo"]):
        samples.take(os.getpid(), "1", name, 30.0 * at_s)
    samples.take(2**30, "1", "gone", 0.0)  # there is no such process
    assert {
        name: [len(one.samples) for one in lives] for name, lives in samples.lives().items()
    } == {
        "ppo": [3],
        "worker": [2],
    }
    assert samples.long(50.0) == []  # too short for a slope after the warm-up
    samples.take(os.getpid(), "1", "ppo", 130.0)
    assert [one.name for one in samples.long(50.0)] == ["ppo"]


def test_a_seed_decides_the_faults_and_every_round_has_all_kinds() -> None:
    def first(seed: int) -> list[Fault]:
        return list(itertools.islice(faults(seed, ["a", "b"], ["s"]), 15))

    assert first(0) == first(0) != first(1)
    for begin in (0, 5, 10):
        assert {fault.kind for fault in first(0)[begin : begin + 5]} == set(get_args(Kind))
    for fault in first(0):
        victims = {
            "kill a simulation": {"s"},
            "kill the evaluation": {"evaluation"},
            "pause": {"a", "b", "s"},
        }
        assert fault.victim in victims.get(fault.kind, {"a", "b"})
