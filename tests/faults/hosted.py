"""Launches runs in the process of `host`, with the interface of processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults.host import READY
from tests.faults.started import ENDS_S, PATIENCE_S, ROOT, Started, environment_of

_ENDS_S = 30.0


class HostedLaunch:
    """Stands in for the `subprocess.Popen` of a launch.

    Args:
        host: the process in which the launch runs.
        folder: of the host.
        name: of this launch.
    """

    def __init__(self, host: subprocess.Popen[str], folder: Path, name: str) -> None:
        self._host = host
        self._files = folder / name
        self.pid = host.pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            with contextlib.suppress(OSError):
                self.returncode = int(self._files.with_suffix(".code").read_text())
                return self.returncode
            # The host has died, which only happens if a test fails.
            self.returncode = self._host.poll()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if deadline is not None and time.monotonic() >= deadline:
                output = self._files.with_suffix(".output").read_text()
                raise subprocess.TimeoutExpired("muxrl launch", timeout or 0.0, output)
            time.sleep(0.02)
        return self._files.with_suffix(".output").read_text(), None

    def wait(self, timeout: float | None = None) -> int:
        self.communicate(timeout)
        assert self.returncode is not None
        return self.returncode


class Host:
    """One process for all launches, started with the first one, and again after a failed test."""

    def __init__(self) -> None:
        self._process: Started | None = None
        self._folder = Path()
        self._own: set[tuple[int, str]] = set()
        """The processes that live as long as the host."""
        self._num_launches = 0

    def launch(self, arguments: Sequence[str]) -> tuple[HostedLaunch, str]:
        """Makes the host run ``muxrl`` with these arguments; returns the launch and its mark."""
        process = self._process if self._is_alive() else self._start()
        self._num_launches += 1
        name = str(self._num_launches)
        (self._folder / f"{name}.output").touch()
        assert process.popen.stdin is not None
        process.popen.stdin.write(json.dumps([name, [*arguments]]) + "\n")
        process.popen.stdin.flush()
        # Tests use nothing of a `Popen` that a `HostedLaunch` lacks.
        return HostedLaunch(process.popen, self._folder, name), process.mark

    def run(self, *arguments: str) -> str:
        """Makes the host run ``muxrl`` until it ends with exit code 0; returns its output."""
        launched, _ = self.launch(arguments)
        output, _ = launched.communicate(2 * PATIENCE_S)
        assert launched.returncode == 0, output
        return output

    def end(self, launch: HostedLaunch) -> None:
        """Ends a launch that a failed test has left; kills the host if the launch does not end."""
        if launch.poll() is None:
            os.kill(launch.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                launch.communicate(ENDS_S)
                return
            self.kill()

    def assert_nothing_is_left(self, patience_s: float) -> None:
        """Waits until all processes that launches have started have ended."""

        def left() -> list[str]:
            assert self._process is not None
            return [
                process.command[:200]
                for process in self._process.started()
                if (process.pid, process.started_at) not in self._own
            ]

        deadline = time.monotonic() + patience_s
        while left() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left(), left()

    def close(self) -> None:
        """Ends the host, and asserts that none of its processes is left."""
        if self._process is None:
            return
        try:
            assert self._process.popen.stdin is not None
            self._process.popen.stdin.close()
            self._process.popen.wait(_ENDS_S)
            self._process.assert_nothing_is_left(_ENDS_S)
        finally:
            self.kill()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None
            shutil.rmtree(self._folder, ignore_errors=True)

    def _is_alive(self) -> bool:
        return self._process is not None and self._process.popen.poll() is None

    def _start(self) -> Started:
        self.kill()  # removes the remains of a host that has died
        self._folder = Path(f"/tmp/mxh{os.getpid()}")
        self._folder.mkdir()
        self._process = Started.of_program(
            [sys.executable, "-m", "tests.faults.host", str(self._folder)],
            "host",
            self._folder,
            env=environment_of(ROOT),
            stdin=subprocess.PIPE,
        )
        self._process.wait_for("the host", (self._folder / READY).exists, PATIENCE_S)
        self._own = {(p.pid, p.started_at) for p in self._process.started()}
        return self._process
