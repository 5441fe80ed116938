"""Feeds a run's trackers while it runs, so that none of them can end the run or hold it up."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from muxrl.orchestrator.config.trackers import is_local
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.supervise.child import Child
from muxrl.orchestrator.trackers.session import Session, describe, state_at_end
from muxrl.orchestrator.user_modules import worker_variables

logger = logging.getLogger(__name__)

_END_S = 60.0
"""Time in which all trackers of a run may send the rest; making an ``mlflow.db`` takes 20 s."""
_START = "from muxrl.orchestrator.trackers.session import main; main()"


class Tracking:
    """The trackers of one run. Only the constructor raises.

    Trackers that only append to a file are fed here, since a process for each would cost more than
    they do. Every other tracker has its own process, which follows the run's files.

    Args:
        folder: the run's directory, with its plan and config.
        names: of the trackers, as in the config.
        resumed_at: env steps at which the run continues; None: it is new.
        lengths: by metrics file: its bytes up to `resumed_at`.

    Raises:
        NotARunDirectory: the plan or the config is missing.
    """

    def __init__(
        self,
        folder: RunDirectory,
        names: Sequence[str],
        resumed_at: int | None = None,
        lengths: Mapping[str, int] | None = None,
    ) -> None:
        self._folder = folder
        self._sessions: dict[str, Session] = {}
        self._processes: list[_Process] = []
        self._to_start = [name for name in names if not is_local(name)]
        self._sent_before = resumed_at, dict(lengths or {})
        if not names:
            return
        run = describe(folder, resumed_at)
        for name in filter(is_local, names):
            with self._guarded(name):
                self._sessions[name] = Session(name, run)

    def receive(self, name: str, record: Mapping[str, Any]) -> None:
        """Takes a row of ``metrics/NAME.jsonl``; the trackers' processes read it from the file."""
        for tracker, session in list(self._sessions.items()):
            with self._guarded(tracker):
                session.receive(name, record)
        self._start()
        for each in self._processes:
            each.check()

    def _start(self) -> None:
        """Starts the processes once, at the first row: before it a resumed run cuts its files."""
        names, self._to_start = self._to_start, []
        self._processes += [_Process(name, self._folder, *self._sent_before) for name in names]

    def close(self) -> None:
        """Hands over the report, and waits until all trackers have finished or are given up."""
        self._start()
        state = state_at_end(self._folder)
        for tracker, session in list(self._sessions.items()):
            with self._guarded(tracker):
                session.end(state)
        for each in self._processes:
            each.close()
        deadline = time.monotonic() + _END_S
        for each in self._processes:  # they finish side by side
            each.wait(max(0.0, deadline - time.monotonic()))
        self._sessions, self._processes = {}, []

    @contextlib.contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Stops feeding a tracker once it raises."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # a tracker may raise anything
            logger.warning(
                "the tracker %r of %s failed and gets nothing more; the run goes on: %s",
                name,
                self._folder.path,
                error,
            )
            if (session := self._sessions.pop(name, None)) is not None:
                session.abandon()


class _Process:
    """A tracker's process, which can be slow, hang or crash. Nothing here raises.

    Weights & Biases and MLflow wait for servers, start threads and processes, and have work to do
    when their process ends. Ctrl-C ends the run first; this then closes the process's standard
    input.

    Args:
        name: of the tracker.
        folder: of the run.
        resumed_at: env steps at which the run continues; None: it is new.
        lengths: by metrics file: the bytes that the tracker got before.
    """

    def __init__(
        self,
        name: str,
        folder: RunDirectory,
        resumed_at: int | None,
        lengths: Mapping[str, int],
    ) -> None:
        self._name = name
        self._folder = folder
        self._process: Child | None = None
        """None: the process has ended."""
        self._log = folder.log(f"tracker-{name.replace(':', '.')}")
        what = json.dumps([name, str(folder.path), resumed_at, dict(lengths)])
        try:
            with self._log.open("ab") as log:
                # -P: modules in the current folder must not hide those of libraries.
                self._process = Child(
                    [sys.executable, "-P", "-c", _START, what],
                    stdout=log,
                    stderr=log,
                    env=worker_variables(),
                )
        except OSError as error:
            self._leave(str(error))

    def check(self) -> None:
        """Logs a warning once if the process has ended."""
        if self._process is not None and self._process.poll() is not None:
            self._end(self._process)

    def close(self) -> None:
        """Tells the process that the run is over, so that it ends."""
        if self._process is not None:
            self._process.stdin.close()

    def wait(self, patience_s: float) -> None:
        """Waits for the process to end, after `close`; kills it if it does not."""
        if (process := self._process) is None:
            return
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.end(0.0)
            self._leave(
                "it had not finished in the time that trackers have after a run, and was ended"
            )
        else:
            self._end(process)

    def _end(self, process: Child) -> None:
        self._process = None
        process.end(0.0)  # closes its pipe
        if (code := process.returncode) != 0:
            said = self._log.read_text("utf-8", "replace").strip().split("\n")[-1]
            self._leave((said if code == 1 else "") or f"its process died ({code})")

    def _leave(self, cause: str) -> None:
        self._process = None
        logger.warning(
            "the run goes on without its tracker %r: %s; its log: %s. Once the run is over, "
            "'muxrl track %s %s' gives everything to it",
            self._name,
            cause,
            self._log,
            self._folder.path,
            self._name,
        )
