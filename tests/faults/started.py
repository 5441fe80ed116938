"""Starts programs in process groups of their own, and finds their descendants."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.processes import MARK, Process, assert_all_end, marked

ROOT = Path(__file__).parents[2]
PATIENCE_S = 180.0
"""Time for a run to begin to learn: longer than `timeouts.start_s`, which it may report."""
ENDS_S = 30.0
"""Time for a run to end."""
PAUSE_S = 0.001
"""How long a step of a simulation sleeps, so that it leaves the processors to other tests."""


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Lets child processes receive SIGINT, as at a terminal.

    A background job of a script ignores SIGINT, and its children inherit that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def environment_of(checkout: Path) -> dict[str, str]:
    """Returns this process's environment, in which ``muxrl`` is that of a checkout."""
    python_path = [str(checkout / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(python_path)}


def muxrl(
    *arguments: str, code: int = 0, cwd: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs ``muxrl`` to its end; fails if its exit code is another one."""
    done = subprocess.run(
        [sys.executable, "-m", "muxrl", *arguments],
        cwd=cwd,
        env=environment_of(ROOT) | variables,
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


@dataclass
class Started:
    """A command in a process group of its own.

    Everything that the command starts inherits `mark` in its environment, and is found by it.
    """

    popen: subprocess.Popen[str]
    mark: str
    output: str = field(default="", init=False)

    @classmethod
    def of_command(
        cls,
        arguments: Sequence[str],
        mark: str,
        temporary: Path,
        **streams: Any,
    ) -> Self:
        """Starts ``muxrl`` with these arguments.

        Args:
            arguments: of the command.
            mark: by which its descendants are found.
            temporary: folder for its temporary files.
            streams: for `subprocess.Popen`; by default all output is kept.
        """
        command = [sys.executable, "-m", "muxrl", *arguments]
        return cls.of_program(command, mark, temporary, env=environment_of(ROOT), **streams)

    @classmethod
    def of_program(
        cls,
        command: Sequence[str],
        mark: str,
        temporary: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        **streams: Any,
    ) -> Self:
        """Starts any program in a process group of its own.

        Args:
            command: of the program.
            mark: by which its descendants are found.
            temporary: folder for its temporary files.
            env: replaces this process's environment.
            cwd: its working directory.
            streams: for `subprocess.Popen`; by default all output is kept.
        """
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} | streams
        value = f"{os.getpid()}-{mark}"
        with _interruptible():
            popen = subprocess.Popen(
                command,
                cwd=cwd,
                text=True,
                start_new_session=True,
                env={
                    **(os.environ if env is None else env),
                    MARK: value,
                    "TMPDIR": str(temporary),
                    "COLUMNS": "200",
                },
                **streams,
            )
        return cls(popen, value)

    def wait_for(
        self, what: str, is_there: Callable[[], bool], patience_s: float = PATIENCE_S
    ) -> None:
        deadline = time.monotonic() + patience_s
        while not is_there():
            assert self.popen.poll() is None, f"ended before {what}: {self.popen.communicate()}"
            if time.monotonic() >= deadline:
                commands = [process.command[:100] for process in self.started()]
                self.kill()
                raise AssertionError(f"no {what} in {patience_s} s\n{commands}\n{self.output}")
            time.sleep(0.05)

    def started(self) -> list[Process]:
        """Returns the living descendants of the command."""
        return [process for process in marked(self.mark) if process.pid != self.popen.pid]

    def writer_of(self, log: Path) -> int | None:
        """Returns the pid of the descendant whose stdout is this file, None if there is none."""
        for process in self.started():
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{process.pid}/fd/1") == str(log):
                    return process.pid
        return None

    def wait(self, timeout_s: float = ENDS_S) -> int:
        """Waits until the command has ended; returns its exit code."""
        self.output, _ = self.popen.communicate(timeout=timeout_s)
        return self.popen.returncode

    def interrupt(self) -> None:
        """Sends SIGINT to the whole process group, as a terminal does."""
        os.killpg(self.popen.pid, signal.SIGINT)

    def assert_nothing_is_left(self, patience_s: float = 5.0, but: Sequence[str] = ()) -> None:
        """Waits until all descendants have ended, except commands that begin with one of `but`."""
        assert_all_end(self.mark, patience_s, but)

    def kill(self) -> None:
        """Kills the command and its descendants, after a test that failed half-way."""
        if self.popen.poll() is None:
            self.popen.kill()
            self.output, _ = self.popen.communicate()
        elif self.popen.stdout is not None:  # the test may have killed the command itself
            self.popen.stdout.close()
        for _ in range(3):  # a process may start another one just before it is killed
            for process in self.started():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.1)
