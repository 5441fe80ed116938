"""A simulation that is a program of the user's: started with a run, watched, and ended with it."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from muxrl.orchestrator.errors import RunFailed
from muxrl.orchestrator.supervise.process import set_up
from muxrl.orchestrator.supervise.simulation_process import SimulationReport

logger = logging.getLogger(__name__)

_ENDS_S = 5.0
_GUARD = """
import os, sys
group, _ = sys.stdin.readline(), sys.stdin.read()
if group:
    os.killpg(int(group), 9)
"""
"""Kills a process group when its standard input ends: whoever has told it the group is gone."""


class CommandProcess:
    """A process that starts a command and waits for it. What it prints goes to the log file.

    Args:
        command: program and arguments.
        log_path: the process's log file.
    """

    def __init__(self, command: Sequence[str], log_path: Path) -> None:
        set_up(log_path)
        self._command = list(command)
        self._popen: subprocess.Popen[bytes] | None = None
        self._is_stopping = threading.Event()

    def run(self) -> None:
        """Runs the command until it ends.

        Raises:
            RunFailed: it cannot be started, or it ended before it was told to, but for code 0:
                a program may play one episode and end.
        """
        if self._is_stopping.is_set():
            return
        logger.info("starting %s", shlex.join(self._command))
        with _guard() as guard:
            try:
                self._popen = subprocess.Popen(
                    self._command, stdin=subprocess.DEVNULL, start_new_session=True
                )
            except OSError as error:
                raise RunFailed(
                    f"simulation.command {shlex.join(self._command)} cannot be started: "
                    f"{error.strerror}"
                ) from None
            with contextlib.suppress(BrokenPipeError):  # somebody has killed the guard
                os.write(guard, f"{self._popen.pid}\n".encode())
            code = self._popen.wait()
            self._signal(signal.SIGKILL)  # what it has started and left
        logger.info("it has ended with code %d", code)
        if not self._is_stopping.is_set() and code:
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            raise RunFailed(
                f"simulation.command {shlex.join(self._command)} ended {how} before the run was "
                "over"
            )

    def report(self) -> SimulationReport:
        """Says that the process lives; the gateway counts what is played."""
        return SimulationReport()

    def stop(self, patience_s: float) -> None:
        """Waits until the command ends by itself, and ends it after that time."""
        self._is_stopping.set()
        if self._popen is None:
            return
        for number, wait_s in ((None, patience_s), (signal.SIGTERM, _ENDS_S), (signal.SIGKILL, 1)):
            if number is not None:
                self._signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(wait_s)
                break
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """Sends a signal to the command, and to all that it has started."""
        assert self._popen is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, number)


@contextlib.contextmanager
def _guard() -> Iterator[int]:
    """A process that ends a command and what it has started, should this one die before them.

    Yields:
        The file descriptor that takes the number of the command's process group, in a line.
    """
    arguments = [sys.executable, "-I", "-S", "-c", _GUARD]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    ) as guard:
        assert guard.stdin is not None
        try:
            yield guard.stdin.fileno()
        finally:  # the group's number may soon be another's
            guard.kill()
