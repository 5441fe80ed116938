"""Calls a function in a separate process, and ends with it everything that the call has started.

This is for looking at environments: one may change the working folder, crash, or leave threads,
programs and ports behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, TypeVar

from muxrl.client.adapters.simulation import SimulationError

R = TypeVar("R")

_LOOK_S = 0.02
_END_S = 2.0
_SUBREAPER = 36
"""Linux's PR_SET_CHILD_SUBREAPER: descendants whose parent has ended become children of this
process."""


class ProcessCall(Generic[R]):
    """Calls a function in another process, which searches modules in the same folders.

    Args:
        function: a function of a module, which is passed by its name.
        arguments: plain data, as the result has to be.
    """

    def __init__(self, function: Callable[..., R], *arguments: Any) -> None:
        path = [folder or os.getcwd() for folder in sys.path]
        self._conn, theirs = multiprocessing.Pipe()
        with theirs:
            code = f"import sys; sys.path[:] = {path!r}; from {__name__} import main; main()"
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._conn.send((function, arguments))

    def __enter__(self) -> ProcessCall[R]:
        return self

    def __exit__(self, *error: object) -> None:
        """Ends the process, and everything that it has started."""
        with self._process as process, self._conn:
            assert process.stdin is not None
            process.stdin.close()  # the process then ends what it has started, and itself
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: a zombie
                os.killpg(process.pid, signal.SIGKILL)

    def result(self) -> R:
        """Waits for the function's result.

        Raises:
            SimulationError: the function raised one, or the process has ended.
        """
        try:
            while not self._conn.poll(_LOOK_S):
                if self._process.poll() is not None and not self._conn.poll():
                    raise EOFError
            result: R
            result, error, cause = self._conn.recv()
        except EOFError:
            raise SimulationError(
                "the environment's code ended the process that it ran in "
                f"({_ended(self._process.wait())})"
            ) from None
        if error is not None:
            raise error from cause
        return result


def _ended(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def main() -> None:
    """Runs the other process: calls the function, sends the result, and waits to be ended."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    conn = Connection(int(sys.argv[1]))
    function, arguments = conn.recv()
    result: Any = None
    error: Exception | None = None
    cause: BaseException | None = None
    try:
        result = function(*arguments)
    except SimulationError as raised:
        error = raised  # pickle drops causes, and a user's may not be picklable
        cause = raised.__cause__ if isinstance(raised.__cause__, ModuleNotFoundError) else None
    except BaseException:  # noqa: BLE001  # a bug: its traceback is raised in the caller
        error = RuntimeError(f"in the separate process:\n{traceback.format_exc()}")
    conn.send((result, error, cause))
    threading.Event().wait()


def _end_with_parent() -> None:
    """Ends all that this process has started, and itself, once its standard input ends."""
    while os.read(0, 1024):
        pass
    here = Path("/proc/self/task")  # on Linux; elsewhere only the process group ends
    with contextlib.suppress(FileNotFoundError):
        while children := " ".join(p.read_text() for p in here.glob("*/children")).split():
            for child in map(int, children):  # their own children are next
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
    os.killpg(0, signal.SIGKILL)
