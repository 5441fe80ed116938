"""A process of a run, as seen by the one that starts it: calls go over a pipe, answers come back.

`muxrl.orchestrator.supervise.working` is the other side. Both are standard library alone, since
`multiprocessing` runs the user's script again in each process that it starts, and knows no order.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any, Protocol

from muxrl.orchestrator.errors import Ended, Raised
from muxrl.orchestrator.supervise import fork_server, working
from muxrl.orchestrator.supervise.process import kill_group, worker_environment

_EXIT_S = 5.0
"""From the end of a pipe to that of its process."""


class Caller(Protocol):
    """A process of a run, as seen by whoever calls it."""

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        """Calls a method of the process's object; the future has what it returns or raises.

        Where the process has ended, or ends before it answers, that is `Ended`.
        """

    def kill(self) -> None:
        """Ends the process and all that it has started, at once."""


class Worker:
    """A process on this machine.

    It makes its object first, in its main thread; what that raises, all calls raise.

    Args:
        process: the object's class, importable there.
        arguments: with which it is made.
        log: file that the process's output goes to, appended.
        is_forked: whether it comes from the fork server, if there is one: it needs torch.
        env: environment variables, on top of this process's and of `worker_environment`.
    """

    def __init__(
        self,
        process: type,
        arguments: Sequence[Any],
        log: Path,
        *,
        is_forked: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._numbers = itertools.count()
        self._pending: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._end: Ended | None = None
        self._connection, theirs = Pipe()
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **worker_environment(), **(env or {})}
        with theirs:
            forked = fork_server.fork(theirs.fileno(), log, environment) if is_forked else None
            self._process = forked or _Spawned(theirs.fileno(), log, environment)
        self.pid = self._process.pid
        self._send(pickle.dumps((process, arguments, log)))
        threading.Thread(target=self._read, name=f"answers of {self.pid}", daemon=True).start()

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        """See `Caller`."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._end is not None:
                future.set_exception(self._end)
                return future
            number = next(self._numbers)
            self._pending[number] = future
            self._send(pickle.dumps((number, method, arguments)))
        return future

    def _send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended, which `_read` sees
            self._connection.send_bytes(message)

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                number, has_raised, answer = pickle.loads(self._connection.recv_bytes())
                with self._lock:
                    future = self._pending.pop(number)
                try:
                    answer = pickle.loads(answer)
                except Exception as error:  # noqa: BLE001  # of a module that is not here
                    has_raised, answer = True, Raised(f"{type(error).__name__}: {error}")
                (future.set_exception if has_raised else future.set_result)(answer)
        end = Ended(how_it_ended(self._process.wait()))
        with self._lock:
            self._end, pending, self._pending = end, self._pending, {}
        self._connection.close()
        for future in pending.values():
            future.set_exception(end)

    def kill(self) -> None:
        """See `Caller`."""
        if self._end is None:
            kill_group(self.pid)


class _Spawned:
    """The process of a worker, as a child of this one."""

    def __init__(self, connection: int, log: Path, environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-P", "-m", working.__name__, str(connection)]
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                pass_fds=[connection],
                start_new_session=True,  # a terminal's Ctrl-C is not for it
            )
        self.pid = self._popen.pid

    def wait(self) -> int | None:
        """Waits for its end, and ends what it has left; returns its exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # it has closed its pipe, and lives
            self._popen.wait(_EXIT_S)
        kill_group(self.pid)
        return self._popen.wait()


def how_it_ended(code: int | None) -> str:
    """Says how a process has ended, by its exit code; None: nobody knows."""
    if code is None:
        return "its end was not seen"
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name}; for want of memory perhaps" if name == "SIGKILL" else name
