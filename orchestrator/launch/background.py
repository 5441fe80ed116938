"""A run in a separate process, next to the script or notebook that started it.

The process runs `muxrl.orchestrator.launch.background_process`. It is a `Child`, which ends with
the process that started it. Ctrl-C reaches only the script or notebook.
"""

from __future__ import annotations

import contextlib
import pickle
import platform
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from muxrl.orchestrator.config import Experiment, ExperimentConfig
from muxrl.orchestrator.launch.result import RunResult
from muxrl.orchestrator.launch.resuming import find_checkpoint, locked
from muxrl.orchestrator.records.metrics import last_row
from muxrl.orchestrator.records.rows import JointRow
from muxrl.orchestrator.records.run_directory import RunDirectory, make_folder
from muxrl.orchestrator.records.run_status import RunStatus, read_status
from muxrl.orchestrator.supervise.child import Child, how_ended
from muxrl.orchestrator.user_modules import worker_variables

_started: list[subprocess.Popen[bytes]] = []
"""Running processes. Without a reference to one its pipe would be closed, and its run would end."""


class BackgroundRun:
    """A run that continues while the caller does something else. Made by `launch(..., wait=False)`.

    The run ends with the process that started it; `stop` ends it earlier.

    Attributes:
        run_dir: the run's directory, complete up to the last second.
    """

    def __init__(self, folder: RunDirectory, process: subprocess.Popen[bytes]) -> None:
        self.run_dir = folder.path
        self._folder = folder
        self._process = process
        self._started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._is_stopped = False

    def __repr__(self) -> str:
        return f"BackgroundRun({str(self.run_dir)!r}, {self.status().state})"

    def status(self) -> RunStatus:
        """Returns the run's state now, its env steps, and why it failed if it did.

        Raises:
            NotARunDirectory: something else has written to its directory.
        """
        code = self._process.poll()  # polled first: if it has ended, all that it wrote is read
        status = read_status(self._folder)
        if status is None or status.pid != self._process.pid:  # or of before the run was resumed
            status = RunStatus(
                "starting", "", self._started_at, None, platform.node(), self._process.pid, 0, None
            )
        if not status.has_ended and code is not None:
            return replace(
                status,
                state="interrupted" if self._is_stopped else "failed",
                cause=f"its process ended {how_ended(code)} while it was {status.state}; see "
                f"{self._folder.log('launch')}",
            )
        last = last_row(self._folder.metrics / "joint.jsonl", JointRow)
        if status.state != "starting" and last is not None:
            status = replace(status, env_steps=max(status.env_steps, last.env_steps))
        return status

    def stop(self) -> RunResult:
        """Ends the run as Ctrl-C does, with a last checkpoint and its report.

        Returns:
            The result of the run: "interrupted", unless it had ended before.
        """
        if self._process.poll() is None:
            self._is_stopped = True
            self._process.terminate()
        return self.result()

    def result(self, timeout_s: float | None = None) -> RunResult:
        """Waits until the run has ended, and returns its result.

        Ctrl-C ends the waiting, not the run.

        Raises:
            TimeoutError: the run still goes on after `timeout_s`.
        """
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(
                f"run {self._folder.name!r} has not ended after {timeout_s:g} s: it is "
                f"{self.status().state}"
            ) from None
        if self._process in _started:
            _started.remove(self._process)
            if self._process.stdin is not None:
                self._process.stdin.close()
        status = self.status()
        if read_status(self._folder) is None:  # it died before the run began
            return RunResult(self.run_dir, status.state, status.cause, 0, 0.0, None)
        result = RunResult.read(self.run_dir)
        return replace(result, outcome=status.state, problem=status.cause)


def start_run(experiment: Experiment, run_dir: Path | None) -> BackgroundRun:
    """Starts a process that runs an experiment.

    Args:
        experiment: the resolved experiment.
        run_dir: the run's directory, which must not exist yet; None: a new one is made.

    Raises:
        OSError: the directory is there already, or cannot be made.
    """
    folder = make_folder(experiment, run_dir)
    return _start(experiment.config, folder, is_resumed=False)


def start_resumed(config: ExperimentConfig, folder: RunDirectory) -> BackgroundRun:
    """Starts a process that continues a run.

    Args:
        config: the config with which the run continues.
        folder: the run's directory.

    Raises:
        CannotResume: there is no whole checkpoint.
        RunIsRunning: another process watches over the run.
    """
    with locked(folder):
        find_checkpoint(folder)
    return _start(config, folder, is_resumed=True)


def _start(config: ExperimentConfig, folder: RunDirectory, *, is_resumed: bool) -> BackgroundRun:
    folder = RunDirectory(folder.path.absolute())  # the caller may change its working directory
    with folder.log("launch").open("ab") as log:
        process = Child(
            [sys.executable, "-m", "muxrl.orchestrator.launch.background_process"],
            stdout=log,
            stderr=log,
            env=worker_variables(),
        )
    _started.append(process)
    with contextlib.suppress(BrokenPipeError):  # it has died, as `status` will show
        pickle.dump((config, folder.path, is_resumed), process.stdin)
        process.stdin.flush()
    return BackgroundRun(folder, process)
