"""Calls of a simulation that do not return, as the process's reports tell it."""

from __future__ import annotations

import threading
from typing import Any

from muxrl.experiments.simulations.zero_cost import ZeroCost
from muxrl.orchestrator.supervise.step_clock import StepClock


class Stuck(ZeroCost):
    """Its steps wait until they may go on, and then raise."""

    def __init__(self) -> None:
        super().__init__(num_agents=1)
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def step(self, actions: dict[str, Any]) -> Any:
        self.has_begun.set()
        assert self.may_go_on.wait(10.0)
        raise ValueError("it is over")


def test_only_a_call_that_has_not_returned_is_clocked() -> None:
    clock = StepClock()
    stuck = clock.watch(Stuck())
    stuck.reset(seed=1)
    assert clock.step_s == 0.0
    with_error: list[BaseException] = []

    def step() -> None:
        try:
            stuck.step({})
        except ValueError as error:
            with_error.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    assert stuck.has_begun.wait(10.0)
    first = clock.step_s
    assert 0.0 < first < clock.step_s
    stuck.may_go_on.set()
    thread.join()
    assert clock.step_s == 0.0
    assert str(with_error[0]) == "it is over"
