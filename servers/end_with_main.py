"""Servers end when their process's main thread does, whoever forgot to stop them.

The threads of a server are no daemons, since one inside torch can abort the interpreter at its
exit. Python waits for them before it exits, and they work until somebody calls `stop`: without
this a script that ends, or an actor whose Ray is gone, would serve on for ever.
"""

from __future__ import annotations

import functools
import logging
import threading
from typing import Protocol
from weakref import WeakSet

logger = logging.getLogger(__name__)


class Stoppable(Protocol):
    """What has threads that only `stop` ends."""

    def stop(self) -> bool:
        """Ends them; may be called again."""


_running: WeakSet[Stoppable] = WeakSet()


def end_with_main(server: Stoppable) -> None:
    """Lets the end of the main thread stop a server, if it has not been stopped by then."""
    _running.add(server)
    _watcher()


@functools.cache
def _watcher() -> threading.Thread:
    # No daemon either: what it waits for comes before Python waits for it.
    thread = threading.Thread(target=_watch, name="end-with-main", daemon=False)
    thread.start()
    return thread


def _watch() -> None:
    threading.main_thread().join()
    for server in list(_running):
        try:
            server.stop()
        except Exception:  # the others have to end, too
            logger.exception("stopping a server at the process's end")
