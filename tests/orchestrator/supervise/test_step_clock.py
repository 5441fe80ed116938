"""A process's reports show calls of its simulation that do not return."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from muxrl.experiments.simulations.zero_cost import ZeroCost
from muxrl.orchestrator.supervise.step_clock import StepClock


def test_only_a_call_that_has_not_returned_is_clocked(monkeypatch: pytest.MonkeyPatch) -> None:
    has_begun, may_go_on = threading.Event(), threading.Event()

    def step(*_: object) -> None:
        has_begun.set()
        assert may_go_on.wait(10.0)
        raise ValueError("it is over")

    monkeypatch.setattr(ZeroCost, "step", step)
    clock = StepClock()
    stuck = clock.watch(ZeroCost(num_agents=1))
    stuck.reset(seed=1)
    assert clock.step_s == 0.0
    with ThreadPoolExecutor(1) as threads:
        failed = threads.submit(stuck.step, {})
        assert has_begun.wait(10.0)
        first = clock.step_s
        assert 0.0 < first < clock.step_s
        may_go_on.set()
        with pytest.raises(ValueError, match="it is over"):
            failed.result(10.0)
    assert clock.step_s == 0.0
