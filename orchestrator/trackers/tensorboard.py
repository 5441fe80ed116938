"""Writes an event file for TensorBoard into the run's ``tensorboard/``.

The caller's thread writes it. The thread of a `tensorboardX.SummaryWriter` dies on a full disk, and
then whoever adds to its queue waits for ever.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from muxrl.orchestrator.trackers.tracker import TrackedRun

_FLUSH_S = 10.0  # often enough to watch, at no cost


class TensorBoard:
    """Writes scalars, one event for each row."""

    def __init__(self) -> None:
        self._writer: Any = None
        self._flushed_at_s = time.monotonic()

    def start(self, run: TrackedRun) -> str:
        """Makes a new event file; TensorBoard drops later steps of earlier files.

        Raises:
            OSError: the file cannot be written to; also raised by the methods below.
        """
        self._writer = EventsWriter(str(run.folder / "tensorboard" / "events"))
        step = 0 if run.resumed_at is None else run.resumed_at + 1
        self._write(step, session_log=SessionLog(status=SessionLog.START))
        return ""

    def log(self, numbers: Mapping[str, float], env_steps: int) -> None:
        """Adds scalars; they are on disk after at most 10 s of further calls, or at the end."""
        values = [Summary.Value(tag=name, simple_value=x) for name, x in numbers.items()]
        self._write(env_steps, summary=Summary(value=values))

    def _write(self, step: int, **content: Any) -> None:
        self._writer.write_event(Event(wall_time=time.time(), step=step, **content))
        if time.monotonic() - self._flushed_at_s >= _FLUSH_S:
            self._flushed_at_s = time.monotonic()
            self._writer.flush()

    def artifacts(self, files: Sequence[Path]) -> None:
        """Does nothing, as the files already lie next to the event files."""

    def end(self, state: str) -> None:
        """Writes the rest, and closes the file."""
        if self._writer is not None:
            self._writer.close()
