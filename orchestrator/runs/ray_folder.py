"""The temporary folder of a Ray of our own: gone with its run, or at the next run's start."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "muxrl-"
"""Of its name."""
_LOCK = "in_use"


class RayFolder:
    """A new temporary folder, locked as long as this process lives.

    A process that is killed leaves its own; whoever makes one removes those that nobody holds.
    """

    def __init__(self) -> None:
        remove_abandoned(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        # Locked before it has its name: nobody finds it there unlocked.
        new = self.path / "new"
        self._lock = os.open(new, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        new.rename(self.path / _LOCK)

    def remove(self) -> None:
        """Removes it; a second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_abandoned(where: Path) -> None:
    """Removes the folders below `where` whose process has ended."""
    for lock in where.glob(f"{PREFIX}*/{_LOCK}"):
        try:
            descriptor = os.open(lock, os.O_RDWR)
        except OSError:  # another user's, or gone since
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # in use
        else:
            shutil.rmtree(lock.parent, ignore_errors=True)
        finally:
            os.close(descriptor)
