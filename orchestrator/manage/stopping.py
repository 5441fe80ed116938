"""Ends a run, sweep or league from another terminal, as Ctrl-C in its own terminal would.

Its process gets SIGTERM, but only if it is exactly the process that its files name: on this
machine, with the same id and start time, and prepared to end cleanly by that signal.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from muxrl.orchestrator.errors import CannotStop, NotEnded
from muxrl.orchestrator.records.run_directory import LEAGUE_FILE, TRIALS_FILE, RunDirectory
from muxrl.orchestrator.records.run_status import RunStatus, read_status
from muxrl.orchestrator.storage.checkpoints import CheckpointFolder
from muxrl.orchestrator.storage.folders import Folder
from muxrl.orchestrator.storage.process import Process
from muxrl.orchestrator.sweeps.directory import SweepDirectory, counts_text
from muxrl.servers.checkpoints.folder_lock import is_held

_INTERVAL_S = 0.1


def stop(path: Path, timeout_s: float, say: Callable[[str], None]) -> tuple[bool, str]:
    """Ends the run, sweep or league of a directory, and waits until it has ended.

    Args:
        path: the directory.
        timeout_s: how long to wait for the end.
        say: called with a sentence once the process has been told.

    Returns:
        Whether it ended without a failure, and a sentence on how.

    Raises:
        CannotStop: it does not run, or cannot be ended from here; nothing was done.
        NotEnded: it still runs after `timeout_s`.
        NotARunDirectory, NotASweepDirectory: it is no such directory, or a file in it is broken.
    """
    how: Callable[[], str]
    if (path / TRIALS_FILE).is_file():
        folder: Folder = (sweep := SweepDirectory.open(path))
        name, how = f"sweep {str(sweep.path)!r}", lambda: _trials(sweep)
    elif (path / LEAGUE_FILE).is_file():
        go_on = f"continue with: muxrl league {path} --resume"
        folder, name, how = Folder(path), f"league {str(path)!r}", lambda: go_on
    else:
        return _stop_run(RunDirectory.open(path), timeout_s, say)
    process, lock = folder.owner, folder.lock
    if not is_held(lock):
        elsewhere = ""
        if process is not None and not process.is_here:
            elsewhere = f" here (its last process was on the host {process.host!r})"
        raise CannotStop(f"{name} is not running{elsewhere}: {how()}")
    if process is None or process.has_ended:
        raise CannotStop(f"{name} is running, but does not name its process yet; is it starting?")
    _tell(name, process)
    say(f"{name}: sent SIGTERM to process {process.pid}; waiting for its end")
    _wait(name, process, lambda: process.has_ended or not is_held(lock), timeout_s)
    return True, f"{name} has ended: {how()}"


def _stop_run(
    folder: RunDirectory, timeout_s: float, say: Callable[[str], None]
) -> tuple[bool, str]:
    name = f"run {str(folder.path)!r}"
    if folder.sweep is not None:
        raise CannotStop(f"{name} is a trial of the sweep {str(folder.sweep)!r}; stop the sweep")
    status = read_status(folder)
    if status is None:
        raise CannotStop(f"{name} has no status.json: the run has not begun")
    if status.is_over:
        raise CannotStop(f"{name} is over: {_how(folder, status)}")
    process = status.process

    def has_ended() -> bool:
        if process.has_ended:
            return True
        now = read_status(folder)  # a program that called `launch` outlives its run
        return now is not None and now.has_ended and not is_held(folder.lock)

    _tell(name, process)
    say(
        f"{name}: sent SIGTERM to process {process.pid}; waiting for its last checkpoint and its "
        "report"
    )
    _wait(name, process, has_ended, timeout_s)
    after = read_status(folder) or status
    return after.state_now != "failed", f"{name} has ended: {_how(folder, after)}"


def _how(folder: RunDirectory, status: RunStatus) -> str:
    """Returns how a run ended, and how it can be resumed, as text."""
    if not status.has_ended:
        text = f"its process {status.pid} was killed"
    else:
        cause = f" ({status.cause})" if status.state == "failed" else ""
        text = f"{status.state}{cause}, at {status.env_steps:,} env steps"
    checkpoints = CheckpointFolder(folder.checkpoints).env_steps
    if status.state == "done" or not checkpoints:
        return text
    return f"{text}; continue with: muxrl launch --resume {folder.path}"


def _trials(folder: SweepDirectory) -> str:
    trials = folder.trials()
    text = counts_text(Counter(trial.status for trial in trials))
    if all(trial.is_finished for trial in trials):
        return text
    return f"{text}; continue with: muxrl sweep {folder.path} --resume"


def _tell(name: str, process: Process) -> None:
    """Sends SIGTERM to the process that a run or sweep names, and to no other.

    Raises:
        CannotStop: the process is not here, has ended, or would not end cleanly.
    """
    if not process.is_here:
        raise CannotStop(
            f"{name} is on the host {process.host!r}, as process {process.pid}; stop it there"
        )
    if process.has_ended:
        raise CannotStop(f"{name} is over: its process {process.pid} has ended")
    if process.started is None or not process.ends_on_sigterm:
        raise CannotStop(
            f"{name} belongs to process {process.pid}, which would not end cleanly: its program "
            "called launch() or sweep() outside of its main thread, or an earlier muxrl started "
            "it; end that process yourself"
        )
    try:
        os.kill(process.pid, signal.SIGTERM)
    except ProcessLookupError:  # it has just ended
        return
    except PermissionError:
        raise CannotStop(f"{name} belongs to process {process.pid} of another user") from None


def _wait(name: str, process: Process, has_ended: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not has_ended():
        if time.monotonic() > deadline:
            raise NotEnded(
                f"{name} was told to end, but its process {process.pid} still runs after "
                f"{timeout_s:g} s; it may still be saving: try again later, or read its logs"
            )
        time.sleep(_INTERVAL_S)
