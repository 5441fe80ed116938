"""Calls that hold a process and let it go on, in any order."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxrl.orchestrator.supervise.holds import Holds


class Held:
    """What is held."""

    def __init__(self) -> None:
        self.is_held = False
        self.holds = Holds(self._release)

    def hold(self, number: int) -> bool:
        return self.holds.hold(number, self._hold)

    def _hold(self) -> None:
        self.is_held = True

    def _release(self) -> None:
        self.is_held = False


class HeldActor(Held):
    """The same as a process of Ray's, in which a thread plays."""

    def __init__(self) -> None:
        super().__init__()
        self._has_to_stop = threading.Event()

    def run(self) -> None:
        while not self._has_to_stop.is_set():
            sum(range(1_000))

    def tell_held(self) -> bool:
        return self.is_held

    def release(self, number: int) -> None:
        self.holds.release(number)

    def stop(self) -> None:
        self._has_to_stop.set()


@given(st.data(), st.integers(1, 6), st.booleans())
def test_it_is_held_exactly_if_the_newest_hold_is_not_released(
    data: st.DataObject, num_holds: int, is_released: bool
) -> None:
    calls = [(verb, n) for n in range(1, num_holds + 1) for verb in ("hold", "release")]
    if not is_released:
        calls.remove(("release", num_holds))
    held = Held()
    for verb, number in data.draw(st.permutations(calls)):
        held.hold(number) if verb == "hold" else held.holds.release(number)
    assert held.is_held is not is_released


def test_a_release_that_is_overtaken_by_the_next_hold_ends_nothing() -> None:
    held = Held()
    assert held.hold(1)
    assert held.hold(2)
    held.holds.release(1)
    assert held.is_held
    held.holds.release(2)
    assert not held.is_held


def test_a_hold_that_was_released_before_it_came_holds_nothing() -> None:
    held = Held()
    held.holds.release(1)
    assert not held.hold(1)
    assert not held.is_held


@pytest.mark.ray
def test_one_that_ray_runs_stays_held_though_it_may_swap_release_and_hold(
    running_ray: None,
) -> None:
    import ray

    # Ray sends the classes along: its workers do not find this file.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    actor: Any = ray.remote(HeldActor).options(max_concurrency=4, num_cpus=0).remote()
    actor.run.remote()
    assert ray.get(actor.hold.remote(1))
    for number in range(2, 60):
        release = actor.release.remote(number - 1)
        assert ray.get(actor.hold.remote(number))
        ray.get(release)
        assert ray.get(actor.tell_held.remote())
    ray.get(actor.stop.remote())
