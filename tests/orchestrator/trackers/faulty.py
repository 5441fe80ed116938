"""Trackers that fail in the ways trackers fail, and one that writes down each of its calls.

Tests name them as users name their own trackers, and they run in the run's processes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from muxrl.orchestrator.trackers.tracker import TrackedRun


class Notes:
    """Writes a line of JSON for each call into ``notes.jsonl`` beside the run."""

    def start(self, run: TrackedRun) -> str:
        self._path = run.folder.parent / "notes.jsonl"
        self._note("start", {**asdict(run), "folder": str(run.folder)})
        return f"after {run.known_as}" if run.known_as else "first"

    def log(self, numbers: Mapping[str, float], env_steps: int) -> None:
        self._note("log", [numbers, env_steps])

    def artifacts(self, files: Sequence[Path]) -> None:
        self._note("artifacts", [path.name for path in files])

    def end(self, state: str) -> None:
        self._note("end", state)

    def _note(self, call: str, what: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps([call, what]) + "\n")


class AwayAtStart(Notes):
    """A tracker whose server is away: a port on which nobody listens."""

    def start(self, run: TrackedRun) -> str:
        import socket

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        raise AssertionError("somebody listens there")


class Raising(Notes):
    """A tracker that raises at the first row."""

    def log(self, numbers: Mapping[str, float], env_steps: int) -> None:
        raise RuntimeError("the quota\nis used up")


class Crashing(Notes):
    """A tracker whose process dies at the first row, as by a fault in a library."""

    def log(self, numbers: Mapping[str, float], env_steps: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Blocking(Notes):
    """A tracker that never returns from a row, and has started a process that waits, too."""

    def log(self, numbers: Mapping[str, float], env_steps: int) -> None:
        import subprocess

        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        time.sleep(600)
