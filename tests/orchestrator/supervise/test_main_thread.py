"""Simulations run in the main thread of their process, and it answers meanwhile."""

from __future__ import annotations

import signal
import sys
import threading

import pytest
import ray

from muxrl.orchestrator.supervise.actors import start_actor
from muxrl.orchestrator.supervise.main_thread import in_main_thread
from muxrl.orchestrator.supervise.ray_session import ray_session

pytestmark = pytest.mark.ray


class Player:
    @in_main_thread
    def __init__(self) -> None:
        self._is_over = threading.Event()
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    @in_main_thread
    def run(self) -> str:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        self._is_over.wait(60)
        return threading.current_thread().name

    def stop(self) -> bool:
        self._is_over.set()
        return threading.current_thread() is not threading.main_thread()

    @in_main_thread
    def fails(self) -> None:
        raise KeyError("up")


class Broken:
    @in_main_thread
    def __init__(self) -> None:
        raise KeyError("no display")

    def report(self) -> None: ...


def test_marked_methods_run_in_the_main_thread_and_others_beside_them() -> None:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not find it
    with ray_session(2):
        player = start_actor(Player, scheduling=None, has_main_thread=True, max_concurrency=4)
        playing = player.run.remote()
        assert ray.get(player.stop.remote(), timeout=60)
        assert ray.get(playing, timeout=60) == "MainThread"
        with pytest.raises(ray.exceptions.RayTaskError, match="KeyError: 'up'"):
            ray.get(player.fails.remote(), timeout=60)
        broken = start_actor(Broken, scheduling=None, has_main_thread=True, max_concurrency=4)
        with pytest.raises(ray.exceptions.RayActorError, match="KeyError: 'no display'"):
            ray.get(broken.report.remote(), timeout=60)


def test_it_is_a_plain_call_elsewhere() -> None:
    assert in_main_thread(threading.current_thread)() is threading.main_thread()
