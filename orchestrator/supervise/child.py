"""Processes that end with the process that started them, however that ends.

The standard input of a `Child` is a pipe to the process that started it. However that process
ends, the system closes the pipe, and then the child ends, too. A `Program` of the user does not
know this rule, so a child (the guard) watches the pipe for it, and kills the program and all that
it has started.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from muxrl.orchestrator.errors import RunFailed
from muxrl.orchestrator.supervise.process import kill_group

logger = logging.getLogger(__name__)

_GUARD = """
import os, sys
group, _ = sys.stdin.readline(), sys.stdin.read()
if group:
    os.killpg(int(group), 9)
"""
"""The guard: reads the number of a process group, and kills it when standard input ends."""


class Child(subprocess.Popen[bytes]):
    """A process of muxrl that ends at the end of its standard input; see `when_alone`.

    It has its own session, so that a terminal's Ctrl-C does not reach it.

    Args:
        command: program and arguments.
        env: environment variables, on top of this process's.
        options: see `subprocess.Popen`; by default its output is discarded.

    Raises:
        OSError: the process cannot be started.
    """

    stdin: IO[bytes]

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        super().__init__(
            command,
            stdin=subprocess.PIPE,
            env={**os.environ, **(env or {})},
            start_new_session=True,
            **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options},
        )

    def kill(self) -> None:
        """Kills the process, and all that it has started."""
        if self.poll() is None:  # or another thread has just seen its end
            kill_group(self.pid)

    def end(self, patience_s: float) -> None:
        """Closes the standard input, and kills the process if it lives on after `patience_s`."""
        with self:
            self.stdin.close()
            try:
                self.wait(patience_s)
            except subprocess.TimeoutExpired:
                self.kill()


def when_alone(end: Callable[[], object]) -> None:
    """Calls `end`, in a thread, once the process that started this one is gone."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        end()

    threading.Thread(target=wait, daemon=True).start()


class Program:
    """A program of the user. When it ends, all processes that it has started are killed.

    Args:
        command: program and arguments.
        stdout: file descriptor for its output; None: this process's.
        env: environment variables, on top of this process's.

    Raises:
        OSError: the program cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        stdout: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._guard = Child([sys.executable, "-I", "-S", "-c", _GUARD], stderr=None)
        guard = self._guard.stdin.fileno()
        try:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                env={**os.environ, **(env or {})},
                start_new_session=True,
                # The new process tells the guard: this one might be killed before it could.
                preexec_fn=lambda: os.write(guard, f"{os.getpid()}\n".encode()),
            )
        except BaseException:
            self._end_guard()
            raise

    def wait(self, timeout_s: float | None = None) -> int:
        """Waits for its end, kills what it has left running, and returns its exit code.

        Raises:
            subprocess.TimeoutExpired: the program still runs.
        """
        code = self._popen.wait(timeout_s)
        self._signal(signal.SIGKILL)
        self._end_guard()
        return code

    def end(self, patience_s: float, term_s: float) -> None:
        """Ends the program, and all that it has started.

        Args:
            patience_s: how long it may take to end by itself, before SIGTERM.
            term_s: how long it may take to end after SIGTERM, before SIGKILL.
        """
        for number, wait_s in ((None, patience_s), (signal.SIGTERM, term_s), (signal.SIGKILL, 1.0)):
            if number is not None:
                self._signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(wait_s)
                return

    def _end_guard(self) -> None:
        with self._guard:  # killed: the group's number may soon be reused
            self._guard.kill()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: for a zombie
            os.killpg(self._popen.pid, number)


def start_command(
    key: str, command: Sequence[str], env: Mapping[str, str] | None = None
) -> Program:
    """Starts a program that the config names.

    Args:
        key: the key of the config, for messages.
        command: program and arguments.
        env: see `Program`.

    Raises:
        RunFailed: the program cannot be started.
    """
    logger.info("starting %s", shlex.join(command))
    try:
        return Program(command, env=env)
    except OSError as error:
        reason = f"cannot be started: {error.strerror}"
        raise RunFailed(f"{key} {shlex.join(command)} {reason}") from None


def how_ended(code: int) -> str:
    """Returns how a program has ended, as text, from its exit code."""
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
