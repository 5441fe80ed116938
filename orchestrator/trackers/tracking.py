"""A run's trackers while it runs: each gets every row, and none can end or hold the run."""

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
"""For all trackers of a run to send what is left; a first ``mlflow.db`` alone takes 20 s."""
_START = "from muxrl.orchestrator.trackers.session import main; main()"


class Tracking:
    """The trackers of one run. Once it is made, nothing here raises.

    Those that only append to a file are fed at once, since a process for each run would cost more
    than they do; all others follow the run's files in processes of their own.

    Args:
        folder: the run's directory, with its plan and config.
        names: of the trackers, as in the config.
        resumed_at: env steps at which the run continues; None: it is new.
        lengths: bytes of each file of metrics up to there.

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
        """Takes a row of ``metrics/NAME.jsonl``, where processes beside the run find it."""
        for tracker, session in list(self._sessions.items()):
            with self._guarded(tracker):
                session.receive(name, record)
        self._start()
        for each in self._processes:
            each.check()

    def _start(self) -> None:
        """Starts the processes, once: before its first row a run that is resumed cuts its files."""
        names, self._to_start = self._to_start, []
        self._processes += [_Process(name, self._folder, *self._sent_before) for name in names]

    def close(self) -> None:
        """Hands over the report, and waits until all is written or given up."""
        self._start()
        state = state_at_end(self._folder)
        for tracker, session in list(self._sessions.items()):
            with self._guarded(tracker):
                session.end(state)
        for each in self._processes:
            each.close()
        deadline = time.monotonic() + _END_S
        for each in self._processes:  # side by side
            each.wait(max(0.0, deadline - time.monotonic()))
        self._sessions, self._processes = {}, []

    @contextlib.contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Leaves a tracker alone once it raises."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # a tracker may raise anything
            logger.warning(
                "nothing more is written for the tracker %r in %s: %s; the metrics go on",
                name,
                self._folder.path,
                error,
            )
            if (session := self._sessions.pop(name, None)) is not None:
                session.abandon()


class _Process:
    """A tracker's process, which can be slow, hang or crash. Nothing here raises.

    What Weights & Biases and MLflow do is theirs: they wait for servers, start threads and
    processes, and have work to do when theirs ends. Ctrl-C ends the run first, then its standard
    input.

    Args:
        name: of the tracker.
        folder: of the run.
        resumed_at: env steps at which the run continues; None: it is new.
        lengths: bytes of each file of metrics that it was told before.
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
        """None: it has ended."""
        self._log = folder.log(f"tracker-{name.replace(':', '.')}")
        what = json.dumps([name, str(folder.path), resumed_at, dict(lengths)])
        try:
            with self._log.open("ab") as log:
                # -P: what lies in the current folder is never imported in place of a library.
                self._process = Child(
                    [sys.executable, "-P", "-c", _START, what],
                    stdout=log,
                    stderr=log,
                    env=worker_variables(),
                )
        except OSError as error:
            self._leave(str(error))

    def check(self) -> None:
        """Says, once, that it has failed."""
        if self._process is not None and self._process.poll() is not None:
            self._end(self._process)

    def close(self) -> None:
        """Tells it that the run is over, for it to end."""
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
            self._leave("it had not finished when the run had, and was ended")
        else:
            self._end(process)

    def _end(self, process: Child) -> None:
        self._process = None
        process.end(0.0)  # its pipe
        if (code := process.returncode) != 0:
            said = self._log.read_text("utf-8", "replace").strip().split("\n")[-1]
            self._leave((said if code == 1 else "") or f"its process died ({code})")

    def _leave(self, cause: str) -> None:
        self._process = None
        logger.warning(
            "the run goes on without its tracker %r: %s; its log: %s. Once the run is over, "
            "'muxrl track %s %s' tells it all",
            self._name,
            cause,
            self._log,
            self._folder.path,
            self._name,
        )
