"""Processes that end with the one that started them, however that ends.

The standard input of a `Child` is a pipe. The system closes it with its other end, whatever becomes
of the process that holds that, and the child takes this as its own end. A `Program` of the user's
knows nothing of it, so a child watches over that and all that it has started.
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

logger = logging.getLogger(__name__)

_GUARD = """
import os, sys
group, _ = sys.stdin.readline(), sys.stdin.read()
if group:
    os.killpg(int(group), 9)
"""
"""Kills a process group, whose number it has read, when its standard input ends."""


class Child(subprocess.Popen[bytes]):
    """A process of muxrl's own that ends at the end of its standard input: see `when_alone`.

    It has a session of its own, so that a terminal's Ctrl-C is not for it.

    Args:
        command: program and arguments.
        env: environment variables, on top of this process's.
        options: see `subprocess.Popen`; what it writes goes nowhere unless they say where.

    Raises:
        OSError: it cannot be started.
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
        """Kills it, and all that it has started."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)

    def end(self, patience_s: float) -> None:
        """Closes its standard input, and kills it if it has not ended after that time."""
        with self:
            self.stdin.close()
            try:
                self.wait(patience_s)
            except subprocess.TimeoutExpired:
                self.kill()


def when_alone(end: Callable[[], object]) -> None:
    """Has `end` called, in a thread, once the process that started this one is gone."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        end()

    threading.Thread(target=wait, daemon=True).start()


class Program:
    """A program of the user's; nothing of what it has started is left when it has ended.

    Args:
        command: program and arguments.
        stdout: file descriptor for what it prints; None: this process's.
        env: environment variables, on top of this process's.

    Raises:
        OSError: it cannot be started.
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
                # Not from here: who is killed before would leave a program that nobody watches.
                preexec_fn=lambda: os.write(guard, f"{os.getpid()}\n".encode()),
            )
        except BaseException:
            self._end_guard()
            raise

    def wait(self, timeout_s: float | None = None) -> int:
        """Waits for its end, and ends what it has started and left; returns its exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        code = self._popen.wait(timeout_s)
        self._signal(signal.SIGKILL)
        self._end_guard()
        return code

    def end(self, patience_s: float, term_s: float) -> None:
        """Ends it, and all that it has started.

        Args:
            patience_s: for it to end by itself, before SIGTERM.
            term_s: for it to end by that, before SIGKILL.
        """
        for number, wait_s in ((None, patience_s), (signal.SIGTERM, term_s), (signal.SIGKILL, 1.0)):
            if number is not None:
                self._signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(wait_s)
                return

    def _end_guard(self) -> None:
        with self._guard:  # killed: the group's number may soon be another's
            self._guard.kill()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: of a zombie
            os.killpg(self._popen.pid, number)


def start_command(
    key: str, command: Sequence[str], env: Mapping[str, str] | None = None
) -> Program:
    """Starts the program that a key of the config names; `env` as of `Program`.

    Raises:
        RunFailed: it cannot be started.
    """
    logger.info("starting %s", shlex.join(command))
    try:
        return Program(command, env=env)
    except OSError as error:
        reason = f"cannot be started: {error.strerror}"
        raise RunFailed(f"{key} {shlex.join(command)} {reason}") from None


def how_ended(code: int) -> str:
    """Says how a program has ended, by its exit code."""
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
