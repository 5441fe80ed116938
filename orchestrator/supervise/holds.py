"""Puts in order what holds a process and lets it go on.

Ray runs the calls of an actor with threads in any order, also those of one caller: a release can
come after the hold that follows it at once. So each hold has a number, and its release the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Holds:
    """Whether a process is held: if its newest hold has not been released.

    Args:
        release: lets it go on; called when it is not held, too.
    """

    def __init__(self, release: Callable[[], None]) -> None:
        self._release_process = release
        self._lock = threading.Lock()
        self._newest = 0
        self._released = 0

    def hold(self, number: int, hold: Callable[[], None]) -> bool:
        """Holds the process, unless this hold has been released already; returns whether it did.

        Args:
            number: of this hold, from 1; later ones have larger ones.
            hold: has the process pause, and does not wait until it does.
        """
        with self._lock:
            if number <= self._released:
                return False
            self._newest = max(self._newest, number)
            hold()
            return True

    def release(self, number: int) -> None:
        """Lets the process go on, unless a later hold than this has come."""
        with self._lock:
            self._released = max(self._released, number)
            if self._released >= self._newest:
                self._release_process()
