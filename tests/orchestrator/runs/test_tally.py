from __future__ import annotations

import time

from muxrl.orchestrator.runs.tally import Tally


def test_what_comes_before_the_training_takes_none_of_its_time() -> None:
    tally = Tally()
    time.sleep(0.05)
    tally.tick()  # the launcher looks after its processes during a first evaluation, too
    assert tally.time_s == 0.0
    tally.begin()
    tally.tick()
    assert 0.0 <= tally.time_s < 0.05


def test_a_resumed_run_counts_its_time_on() -> None:
    tally = Tally()
    tally.restore(Tally().state() | {"time_s": 100.0})
    tally.tick()
    assert tally.time_s == 100.0
    tally.begin()
    tally.tick()
    assert 100.0 <= tally.time_s < 101.0
