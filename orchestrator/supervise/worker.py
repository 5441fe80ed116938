"""Starts a process of a run, and calls its methods over a pipe.

`muxrl.orchestrator.supervise.working` is the process's side of the pipe. Neither uses the
processes of `multiprocessing`, which run the user's script again and keep no order of calls.
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
"""How long a process may take to end after its pipe has ended."""


class Caller(Protocol):
    """Calls methods in a process of a run."""

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        """Calls a method of the process's object; the future gets what that returns or raises.

        If the process has ended, or ends before it answers, the future raises `Ended`.
        """

    def kill(self) -> None:
        """Ends the process and all that it has started, at once."""


class Worker:
    """A process on this machine.

    The process first makes its object, in its main thread. If that raises, so do all calls.

    Args:
        process: the object's class, which the process imports.
        arguments: arguments of the class.
        log: file to which the process's output is appended.
        is_forked: whether it comes from the fork server, if there is one: for what needs torch.
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
        with contextlib.suppress(OSError):  # the process has ended, which `_read` notices
            self._connection.send_bytes(message)

    def _read(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                number, has_raised, answer = pickle.loads(self._connection.recv_bytes())
                with self._lock:
                    future = self._pending.pop(number)
                try:
                    answer = pickle.loads(answer)
                except Exception as error:  # noqa: BLE001  # of a module that is missing here, say
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
                start_new_session=True,  # a terminal's Ctrl-C does not reach it
            )
        self.pid = self._popen.pid

    def wait(self) -> int | None:
        """Waits for its end, kills what it has left running, and returns its exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # its pipe is closed, yet it lives
            self._popen.wait(_EXIT_S)
        kill_group(self.pid)
        return self._popen.wait()


def how_it_ended(code: int | None) -> str:
    """Returns how a process has ended, as text, from its exit code; None: unknown."""
    if code is None:
        return "in an unknown way"
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name
    return f"{name}; perhaps memory ran out" if name == "SIGKILL" else name
