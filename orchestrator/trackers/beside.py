"""A tracker in a process of its own: it can be slow, hang or crash, and the run goes on.

What Weights & Biases and MLflow do is theirs: they wait for servers, start threads and processes,
and have work to do when their process ends. So the run only appends rows to a queue, whose thread
writes them to the standard input of `process`. Ctrl-C ends the run first, and the tracker is told
how.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.storage.json_files import finite
from muxrl.orchestrator.supervise.child import Child
from muxrl.orchestrator.trackers.tracker import TrackedRun
from muxrl.orchestrator.user_modules import worker_variables

logger = logging.getLogger(__name__)

_MOST_WAITING = 10_000
"""Rows, of 2 KB at most in a run of ten agents: hours of a tracker that hangs."""
_KILLED_S = 5.0
"""For a process that was killed to be gone."""
_START = "from muxrl.orchestrator.trackers.process import main; main()"


class TrackerBeside:
    """A tracker's process, from its start to its end. Nothing here raises, or waits for it.

    Args:
        name: of the tracker.
        run: to be tracked.
    """

    def __init__(self, name: str, run: TrackedRun) -> None:
        self._name = name
        self._run = run
        self._lines: queue.Queue[str | None] = queue.Queue(_MOST_WAITING)
        self._cause = ""
        self._is_left_alone = False
        self._log = RunDirectory(run.folder).log(f"tracker-{name.replace(':', '.')}")
        try:
            with self._log.open("ab") as log:
                # -P: what lies in the current folder is never imported in place of a library.
                self._process = Child(
                    [sys.executable, "-P", "-c", _START],
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=worker_variables(),
                )
        except OSError as error:
            self._leave(str(error))
            return
        self._thread = threading.Thread(target=self._feed, name=f"tracker {name}", daemon=True)
        self._put("start", {"tracker": name, "run": asdict(run) | {"folder": str(run.folder)}})
        self._thread.start()

    def take(self, name: str, record: Mapping[str, Any]) -> None:
        """Queues a row of ``metrics/NAME.jsonl``."""
        self._put("row", {"name": name, "record": record})

    def close(self, state: str) -> None:
        """Queues how the run has ended; the tracker's process ends after it."""
        self._put("end", {"state": state})
        with contextlib.suppress(queue.Full):  # it is killed
            self._lines.put_nowait(None)

    def wait(self, patience_s: float) -> None:
        """Waits for the process to end, after `close`; kills it if it does not."""
        if self._is_left_alone:
            return
        self._thread.join(patience_s)
        if self._thread.is_alive():
            self._kill("it had not finished when the run had, and was ended")
            self._thread.join(_KILLED_S)

    def _put(self, kind: str, content: Mapping[str, Any]) -> None:
        if self._is_left_alone or self._cause:
            return
        try:
            self._lines.put_nowait(json.dumps([kind, finite(content)], default=str) + "\n")
        except queue.Full:
            self._kill(f"it has taken none of the last {_MOST_WAITING:,} rows")

    def _kill(self, cause: str) -> None:
        self._cause = cause
        self._process.kill()

    def _feed(self) -> None:
        """Hands on what is queued, until the end of it or of the process; then says how it went."""
        process = self._process
        assert process.stdout is not None
        with process.stdout:
            with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
                while (line := self._lines.get()) is not None:
                    stdin.write(line.encode())
                    stdin.flush()
            said = process.stdout.read().decode(errors="replace").strip()  # until it ends
        if process.wait() != 0:
            self._leave(self._cause or said or f"its process died ({process.returncode})")

    def _leave(self, cause: str) -> None:
        self._is_left_alone = True
        logger.warning(
            "the run goes on without its tracker %r: %s; its log: %s. Once the run is over, "
            "'muxrl track %s %s' tells it all",
            self._name,
            cause,
            self._log,
            self._run.folder,
            self._name,
        )


def end_all(trackers: list[TrackerBeside], state: str, patience_s: float) -> None:
    """Ends trackers side by side.

    Args:
        trackers: of one run.
        state: "done", "failed" or "interrupted".
        patience_s: for all of them together.
    """
    for tracker in trackers:
        tracker.close(state)
    deadline = time.monotonic() + patience_s
    for tracker in trackers:
        tracker.wait(max(0.0, deadline - time.monotonic()))
