"""TensorBoard's event file, written by the caller's own thread.

`tensorboardX.SummaryWriter` writes in a thread of its own, behind a queue. On a full disk that
thread dies, the queue fills up, and whoever adds to it waits for ever.
"""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_FLUSH_S = 10.0  # costs nothing, and is often enough to watch


class TensorBoardFile:
    """Scalars for TensorBoard.

    They are a copy of what the metrics hold, so they never end a run: once the file cannot be
    written to, one warning is logged and the rest is left out.

    Args:
        folder: where a new event file is made.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboardX.event_file_writer import EventsWriter  # 0.5 s; not every run needs it

        self._folder = folder
        self._writer: Any = None
        self._flushed_at_s = time.monotonic()
        try:
            self._writer = EventsWriter(str(folder / "events"))
        except OSError as error:
            self._give_up(error)

    def add(self, tag: str, number: float, env_steps: int) -> None:
        """Adds a scalar; it is on disk after at most 10 s of further calls, or on `close`."""
        if self._writer is None:
            return
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        try:
            self._writer.write_event(
                Event(wall_time=time.time(), step=env_steps, summary=scalar(tag, number))
            )
            if time.monotonic() - self._flushed_at_s >= _FLUSH_S:
                self._flushed_at_s = time.monotonic()
                self._writer.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Writes what is left and closes the file; a second call does nothing."""
        if self._writer is None:
            return
        try:
            self._writer.close()
        except OSError as error:
            self._give_up(error)
        self._writer = None

    def _give_up(self, error: OSError) -> None:
        logger.warning(
            "nothing more is written for TensorBoard in %s: %s; the metrics go on",
            self._folder,
            error,
        )
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(OSError):  # it tries once more to write what is left
                writer.close()
