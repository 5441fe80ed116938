"""What runs in the process of a `Worker`: its object, whose methods are called over a pipe.

Calls begin in the order in which they were made. A method runs in the thread that takes them, so
that the next one waits for it, unless it is marked: `in_main_thread` for code of the user's, which
may ask for that thread (`signal.signal`, ROS, GUIs), and `in_own_thread` for what takes its time.
A method that has to begin in order and then waits returns a `Rest`.

The process ends with the one that started it, however that ends: the system closes the pipe. Its
process group, and so what it has started, ends with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from operator import methodcaller
from typing import Any, TypeVar

from muxrl.orchestrator.errors import Raised
from muxrl.orchestrator.supervise.process import set_up

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


def in_main_thread(method: F) -> F:
    """Has a method run in the main thread, one such call after another."""
    method.runs_in = "main"  # type: ignore[attr-defined]
    return method


def in_own_thread(method: F) -> F:
    """Has each call of a method run in a thread of its own."""
    method.runs_in = "own"  # type: ignore[attr-defined]
    return method


@dataclass(frozen=True)
class Rest:
    """What of a call is left to do in a thread of its own; returns what the call returns."""

    do: Callable[[], Any]


def work(connection: int) -> None:
    """Does what comes over a pipe, until that ends; does not return.

    Args:
        connection: its file descriptor.
    """
    os.set_inheritable(connection, False)
    calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    pipe = Connection(connection)
    threading.Thread(target=_receive, args=(pipe, calls), name="calls", daemon=True).start()
    process, arguments, log = pickle.loads(calls.get())
    set_up(log)
    _Working(pipe, calls).work(process, arguments)


def _receive(pipe: Connection, calls: queue.SimpleQueue[bytes]) -> None:
    try:
        while True:
            calls.put(pipe.recv_bytes())
    except (EOFError, OSError):
        os.killpg(0, signal.SIGKILL)  # whoever started this is gone


class _Working:
    """The object of a process, and its calls."""

    def __init__(self, pipe: Connection, calls: queue.SimpleQueue[bytes]) -> None:
        self._pipe, self._calls = pipe, calls
        self._lock = threading.Lock()
        self._in_main: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._object: Any = None
        self._problem: BaseException | None = None

    def work(self, process: type, arguments: Sequence[Any]) -> None:
        try:
            self._object = process(*arguments)
        except (Exception, SystemExit) as error:
            logger.exception("%s cannot be made", process.__name__)
            self._problem = error
        threading.Thread(target=self._run_calls, name="in order", daemon=True).start()
        while True:
            self._in_main.get()()

    def _run_calls(self) -> None:
        while True:
            number, name, arguments = pickle.loads(self._calls.get())
            if self._problem is not None:
                self._answer(number, self._problem, has_raised=True)
                continue
            where = getattr(getattr(type(self._object), name, None), "runs_in", "order")
            call = partial(methodcaller(name, *arguments), self._object)
            do = partial(self._do, number, call)
            if where == "main":
                self._in_main.put(do)
            elif where == "own":
                threading.Thread(target=do, name=name, daemon=True).start()
            else:
                do()

    def _do(self, number: int, call: Callable[[], Any]) -> None:
        try:
            answer = call()
        except (Exception, SystemExit) as error:
            logger.exception("a call failed")
            self._answer(number, error, has_raised=True)
            return
        if isinstance(answer, Rest):
            rest = answer.do
            threading.Thread(target=self._do, args=(number, rest), daemon=True).start()
            return
        self._answer(number, answer)

    def _answer(self, number: int, answer: Any, *, has_raised: bool = False) -> None:
        if isinstance(answer, SystemExit):  # it would end whoever hears of it
            answer = Raised(f"SystemExit: {answer}")
        try:
            packed = pickle.dumps(answer)
            if has_raised:
                pickle.loads(packed)  # of exceptions, what can be packed may not be unpacked
        except Exception as error:  # noqa: BLE001  # a user's class may raise anything
            why = answer if has_raised else error
            has_raised = True
            packed = pickle.dumps(Raised(f"{type(why).__name__}: {why}"))
        with self._lock, contextlib.suppress(OSError):
            self._pipe.send_bytes(pickle.dumps((number, has_raised, packed)))


if __name__ == "__main__":
    from muxrl.orchestrator.supervise import working  # not __main__, whose `Rest` is another one

    working.work(int(sys.argv[1]))
