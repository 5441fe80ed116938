"""Identifies the process of a run or a sweep, for other processes that read about it in a file.

The system gives the id of a process that has ended to another process sooner or later. Together
with the start time it is unique. On Linux, `/proc` has the start time in ticks since a boot;
elsewhere ``ps`` has it in seconds.
"""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

_ENDED = "ZX"
"""State letters of processes that have ended, but not been waited for by their parents."""


@dataclass(frozen=True)
class Process:
    """One process of one machine."""

    host: str
    pid: int
    started: str | None
    """The process's start time in its system's own format, only to be compared; None: not known."""
    ends_on_sigterm: bool
    """Whether SIGTERM ends its run or sweep cleanly."""

    @classmethod
    def here(cls, *, ends_on_sigterm: bool) -> Process:
        """Returns the current process."""
        return cls(platform.node(), os.getpid(), start_of(os.getpid()), ends_on_sigterm)

    @property
    def is_here(self) -> bool:
        """Whether the process is, or was, on this machine."""
        return self.host == platform.node()

    @property
    def has_ended(self) -> bool:
        """Whether it is known to have ended; of processes on other machines nothing is known."""
        if not self.is_here:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:  # the process belongs to another user
            pass
        now = start_of(self.pid)
        return now == "" or (None not in (now, self.started) and now != self.started)


def start_of(pid: int) -> str | None:
    """Returns when a process of this machine started; "" if it has ended, None if unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return _start_by_ps(pid)
    state, *rest = stat.rpartition(")")[2].split()  # the name in brackets may contain anything
    return "" if state in _ENDED else f"{boot} {rest[18]}"


def _start_by_ps(pid: int) -> str | None:
    command = ["ps", "-o", "lstart=", "-p", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None
