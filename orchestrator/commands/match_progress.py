"""The progress of a head to head, on the terminal."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType

from muxrl.orchestrator.runs.progress import duration

_INTERVAL_S = 1.0


class MatchProgress:
    """Shows about once a second how many matches are done, if standard error is a terminal.

    It writes to the terminal that standard error was when it was made, so `quiet` does not
    silence it.
    """

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()
        self._descriptor = os.dup(2) if self._is_shown else -1
        self._began_at = self._shown_at = time.monotonic()

    def __enter__(self) -> MatchProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_shown:
            os.write(self._descriptor, b"\r\x1b[K")
            os.close(self._descriptor)

    def __call__(self, done: int, of: int) -> None:
        """Shows the number of matches done, of all, and the time left."""
        now = time.monotonic()
        if not self._is_shown or now - self._shown_at < _INTERVAL_S:
            return
        self._shown_at = now
        left_s = (now - self._began_at) / done * (of - done)
        os.write(
            self._descriptor,
            f"\r\x1b[Khead to head: {done} of {of} matches, {duration(left_s)} left".encode(),
        )
