"""Lets the simulations of a Ray worker run in its main thread.

Ray runs methods of an actor that does several things at once in threads of a pool, while the main
thread waits for work. But `signal.signal`, and so ROS, some simulators and GUIs, ask for the main
thread. So in these workers Ray waits in another thread, and the main one takes calls of its own.
"""

from __future__ import annotations

import functools
import queue
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

R = TypeVar("R")

_calls: queue.SimpleQueue[Callable[[], None] | None] | None = None
"""Of the main thread; None where it takes none."""

HOOK = {"__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR": f"{__name__}.take_calls"}
"""Environment of a worker that is to have its main thread free. Ray has an official way for whole
jobs alone (`worker_process_setup_hook`)."""


def take_calls() -> None:
    """Has this worker, once it is set up, take calls in its main thread."""
    from ray._private.worker import global_worker

    global _calls
    _calls = queue.SimpleQueue()
    global_worker.main_loop = functools.partial(_take_calls, global_worker, _calls)


def _take_calls(worker: Any, calls: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    def wait_for_tasks() -> None:
        try:
            worker.core_worker.run_task_loop()
        finally:
            calls.put(None)

    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not an exception in the simulation's code
    threading.Thread(target=wait_for_tasks, name="ray", daemon=True).start()
    while (call := calls.get()) is not None:
        call()
    sys.exit(0)


def in_main_thread(function: Callable[..., R]) -> Callable[..., R]:
    """Has a function or method run in the main thread, where that takes calls, or else in its own;
    the caller waits for it."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> R:
        return _call_there(functools.partial(function, *args, **kwargs))

    return called


def _call_there(function: Callable[[], R]) -> R:
    if _calls is None or threading.current_thread() is threading.main_thread():
        return function()
    future: Future[R] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001  # it goes on where it was called
            future.set_exception(error)

    _calls.put(call)
    return future.result()
