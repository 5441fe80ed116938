"""Stops servers that are still running when the main thread of their process ends.

The threads of a server are not daemons, since a daemon thread inside torch can abort the
interpreter at its exit. Python waits for such threads before it exits, and they run until `stop` is
called: without this module, a script that ends without calling it, or an actor whose Ray is gone,
would serve for ever.
"""

from __future__ import annotations

import functools
import logging
import threading
from typing import Protocol
from weakref import WeakSet

logger = logging.getLogger(__name__)


class Stoppable(Protocol):
    """An object whose threads run until `stop` is called."""

    def stop(self) -> bool:
        """Ends the threads; may be called again."""


_running: WeakSet[Stoppable] = WeakSet()


def end_with_main(server: Stoppable) -> None:
    """Registers a server to be stopped at the end of the main thread, if it still runs then."""
    _running.add(server)
    _watcher()


@functools.cache
def _watcher() -> threading.Thread:
    # Not a daemon either: the main thread ends before Python waits for this one.
    thread = threading.Thread(target=_watch, name="end-with-main", daemon=False)
    thread.start()
    return thread


def _watch() -> None:
    threading.main_thread().join()
    for server in list(_running):
        try:
            server.stop()
        except Exception:  # the other servers must be stopped, too
            logger.exception("a server could not be stopped at the end of its process")
