"""The process that watches over a run or a sweep, for those who find it in a file.

The id of a process that has ended is given to another one sooner or later; with the moment of its
start it is unique. `/proc` says that moment in ticks since a boot, ``ps`` elsewhere in seconds.
"""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

_ENDED = "ZX"
"""Letters of processes that have ended and whose parents have not asked how."""


@dataclass(frozen=True)
class Process:
    """One process of one machine."""

    host: str
    pid: int
    started: str | None
    """When, in the words of its system, to be compared and not read; None: not known."""
    ends_on_sigterm: bool
    """Whether SIGTERM ends its run or sweep cleanly."""

    @classmethod
    def here(cls, *, ends_on_sigterm: bool) -> Process:
        """Returns the current process."""
        return cls(platform.node(), os.getpid(), start_of(os.getpid()), ends_on_sigterm)

    @property
    def is_here(self) -> bool:
        """Whether it is, or was, on this machine."""
        return self.host == platform.node()

    @property
    def has_ended(self) -> bool:
        """Whether it is known to have ended; of another machine's process nothing is known."""
        if not self.is_here:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:  # it is another user's
            pass
        now = start_of(self.pid)
        return now == "" or (None not in (now, self.started) and now != self.started)


def start_of(pid: int) -> str | None:
    """Returns when a process of this machine started; "" if it has ended, None if nobody says."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return _start_by_ps(pid)
    state, *rest = stat.rpartition(")")[2].split()  # a name in brackets may hold anything
    return "" if state in _ENDED else f"{boot} {rest[18]}"


def _start_by_ps(pid: int) -> str | None:
    command = ["ps", "-o", "lstart=", "-p", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None
