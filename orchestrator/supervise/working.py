"""Runs in the process of a `Worker`: makes the object whose methods are called over a pipe.

Calls begin in the order in which they were made. A method runs in the thread that receives calls,
so that the next call waits for it, unless the method is marked: `in_main_thread` for code of the
user, which may need that thread (`signal.signal`, ROS, GUIs), and `in_own_thread` for methods that
take long. A method that has to begin in order and then waits returns a `Rest`.

The process ends with the process that started it, however that ends: the system closes the pipe.
Its process group, and so all that it has started, ends with it.
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
    """Marks a method to run in the main thread, one such call after another."""
    method.runs_in = "main"  # type: ignore[attr-defined]
    return method


def in_own_thread(method: F) -> F:
    """Marks a method so that each of its calls runs in a new thread."""
    method.runs_in = "own"  # type: ignore[attr-defined]
    return method


@dataclass(frozen=True)
class Rest:
    """The rest of a call: `do` runs in a new thread, and returns the result of the call."""

    do: Callable[[], Any]


def work(connection: int) -> None:
    """Makes the object, and serves calls over a pipe until the pipe ends; does not return.

    Args:
        connection: the file descriptor of the pipe.
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
        os.killpg(0, signal.SIGKILL)  # the process that started this one is gone


class _Working:
    """Makes the object of a process, and runs its calls."""

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
        if isinstance(answer, SystemExit):  # raised by the caller, it would end the caller
            answer = Raised(f"SystemExit: {answer}")
        try:
            packed = pickle.dumps(answer)
            if has_raised:
                pickle.loads(packed)  # some exceptions can be pickled, but not unpickled
        except Exception as error:  # noqa: BLE001  # pickling a user's class may raise anything
            why = answer if has_raised else error
            has_raised = True
            packed = pickle.dumps(Raised(f"{type(why).__name__}: {why}"))
        with self._lock, contextlib.suppress(OSError):
            self._pipe.send_bytes(pickle.dumps((number, has_raised, packed)))


if __name__ == "__main__":
    from muxrl.orchestrator.supervise import working  # not __main__, whose `Rest` is another class

    working.work(int(sys.argv[1]))
