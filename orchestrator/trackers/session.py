"""One run in one tracker, from its first row to its report: what all three feeders share.

The run itself feeds TensorBoard, a process beside it (`process`) any other tracker, and `replay`
all of them afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from muxrl.orchestrator.trackers.registry import make_tracker
from muxrl.orchestrator.trackers.rows import numbers
from muxrl.orchestrator.trackers.tracker import TrackedRun

_FOLDER = "trackers"
_REPORT = ("report.html", "summary.md", "summary.json", "plots/learning.png")


class Session:
    """A tracker's run. Every call raises whatever the tracker raises.

    Args:
        name: of the tracker, as in the config.
        run: to be tracked. Of one that is resumed the tracker's run goes on, if it has begun.
    """

    def __init__(self, name: str, run: TrackedRun) -> None:
        self._folder = run.folder
        self._tracker = make_tracker(name)
        note = run.folder / _FOLDER / f"{name.replace(':', '.')}.txt"
        if run.resumed_at is not None and note.is_file():
            run = replace(run, known_as=note.read_text(encoding="utf-8").strip())
        self.known_as = self._tracker.start(run)
        """What the tracker knows the run by."""
        if self.known_as:
            note.parent.mkdir(exist_ok=True)
            note.write_text(f"{self.known_as}\n", encoding="utf-8")

    def take(self, name: str, record: Mapping[str, Any]) -> None:
        """Logs a row of ``metrics/NAME.jsonl``."""
        if row := numbers(name, record):
            self._tracker.log(row, int(record["env_steps"]))

    def end(self, state: str) -> None:
        """Hands over what there is of the report, and ends the tracker's run."""
        files = [self._folder / name for name in _REPORT]
        if present := [path for path in files if path.is_file()]:
            self._tracker.artifacts(present)
        self._tracker.end(state)

    def abandon(self) -> None:
        """Ends a tracker's run that has failed, as far as it still can be."""
        with contextlib.suppress(Exception):  # that it has failed was said
            self._tracker.end("failed")
