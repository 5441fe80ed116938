"""The processes of this machine, and those that descend from a process that a test started."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MARK = "MUXRL_TEST_MARK"
"""An environment variable: all descendants of a marked process inherit it, and are found by it."""


@dataclass
class Process:
    """One process, as ``/proc`` shows it."""

    pid: int
    started_at: str
    """Together with the pid this is unique, even after the pid is used again."""
    environ: bytes
    command: str


def processes() -> Iterator[Process]:
    """Yields the living processes that this user may look into."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            if stat[0] in "ZX":
                continue
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            yield Process(int(entry.name), stat[19], (entry / "environ").read_bytes(), command)
        except OSError:
            continue  # the process has just ended


def marked(value: str) -> list[Process]:
    """Returns the living processes that inherited this mark, except the current process."""
    mark = f"{MARK}={value}".encode()
    own = os.getpid()
    return [p for p in processes() if mark in p.environ.split(b"\0") and p.pid != own]


def assert_all_end(value: str, patience_s: float, but: Sequence[str] = ()) -> None:
    """Waits until no process has this mark, except commands that begin with one of `but`."""

    def remaining() -> list[str]:
        commands = [process.command.rstrip() for process in marked(value)]
        return [command for command in commands if not command.startswith(tuple(but))]

    deadline = time.monotonic() + patience_s
    while remaining() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not remaining(), [command[:200] for command in remaining()]
