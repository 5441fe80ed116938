from __future__ import annotations

import os
import threading
from collections.abc import Callable

import numpy as np
import pytest
from benchmarks.soak.samples import Bound, Life, Sample, Samples, fitted_growth


def life(rss_mib: Callable[[float], float], descriptors: Callable[[float], int]) -> Life:
    """Returns ten minutes of a process, a sample every two seconds."""
    times = np.arange(0.0, 600.0, 2.0)
    samples = [Sample(t, rss_mib(t), descriptors(t), 20) for t in times]
    return Life("ppo", 1, samples)


def test_a_process_is_seen_as_it_is() -> None:
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


def test_growth_is_the_line_s() -> None:
    assert fitted_growth([10.0, 12.0, 14.0], [1.0, 2.0, 3.0]) == pytest.approx(2.0)
    assert fitted_growth([10.0], [1.0]) == 0.0


def test_what_grows_in_the_warm_up_and_swings_afterwards_is_flat() -> None:
    flat = life(lambda t: 400.0 + min(t, 150.0) + 10.0 * np.sin(t), lambda t: 50 + int(t) % 4)
    assert flat.problems(Bound()) == []


def test_leaks_are_found() -> None:
    # 400 s after the warm-up of 200 s: 80 MiB where 56 are allowed, 10 descriptors where 8 are.
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
    samples.take(2**30, "1", "gone", 0.0)  # no such process
    assert {
        name: [len(one.samples) for one in lives] for name, lives in samples.lives().items()
    } == {
        "ppo": [3],
        "worker": [2],
    }
    assert samples.long(50.0) == []  # not long enough for a slope after the warm-up
    samples.take(os.getpid(), "1", "ppo", 130.0)
    assert [one.name for one in samples.long(50.0)] == ["ppo"]
