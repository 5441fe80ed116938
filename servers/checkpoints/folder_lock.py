"""Locks a folder for one process: of a run, of a sweep, of a server's checkpoints."""

from __future__ import annotations

import contextlib
import fcntl
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def held(file: Path, refusal: Callable[[], Exception]) -> Iterator[None]:
    """Holds a lock file in a ``with`` block; raises the refusal if another process holds it.

    The system releases the lock when this process ends, in whatever way.

    Raises:
        OSError: the file cannot be made.
        OSError: the file cannot be made.
    """
    with file.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise refusal() from None
        except OSError as error:  # a file system without locks
            logger.warning("%s cannot be locked: %s", file.parent, error)
        yield


def is_held(file: Path) -> bool:
    """Whether a process holds a lock file; False on a file system without locks."""
    try:
        with file.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
