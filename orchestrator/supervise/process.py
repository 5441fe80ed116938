"""What all processes of a run have in common: their id, their report, their log.

Heavy imports happen inside functions, so that the orchestrator's own process stays light.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import os
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from muxrl.orchestrator.supervise.away import AwayLog, Piece
from muxrl.orchestrator.user_modules import find_user_modules

logger = logging.getLogger(__name__)
T = TypeVar("T")

_away: AwayLog | None = None


@dataclass(frozen=True)
class ProcessId:
    """Where a process is, for whoever has to kill it."""

    pid: int
    node_id: str
    """Of its machine, as Ray calls it; "" without Ray."""

    @classmethod
    def of_this(cls) -> ProcessId:
        """Returns that of the process that asks."""
        import ray

        node_id = ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""
        return cls(os.getpid(), node_id)


@dataclass(frozen=True, kw_only=True)
class ProcessReport:
    """What a process says of itself when it is asked, about once a second."""

    process: ProcessId = field(default_factory=ProcessId.of_this)
    step_s: float = 0.0
    """How long its simulation has been in a call that has not returned; 0 if it is in none."""
    under_way: tuple[int, int] = (0, 0)
    """Of the evaluation that it plays: episodes that have ended, and env steps of the longest one
    that is open."""
    log: Piece | None = field(default_factory=lambda: _away.piece() if _away else None)
    """What it has logged since its last report, if it does not see the run's directory."""


def set_up(log_path: Path) -> None:
    """Sends this process's stdout, stderr and logging to a file, and finds the user's modules.

    Nothing goes to a pipe: one that nobody reads fills up and stops the process that writes to it.

    Args:
        log_path: appended to; its folder is made if it is missing (another machine of a cluster).
    """
    global _away
    log_path.parent.mkdir(parents=True, exist_ok=True)
    sees_run = (log_path.parent.parent / "metrics").is_dir()  # which the orchestrator makes
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    _away = None if sees_run else AwayLog(log_path)
    faulthandler.enable()
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
        force=True,
    )
    find_user_modules()


def take_all(queue: deque[T]) -> list[T]:
    """Empties a queue to which another thread adds meanwhile; returns what was in it."""
    found = []
    with contextlib.suppress(IndexError):
        while True:
            found.append(queue.popleft())
    return found


def settle() -> None:
    """Tells the garbage collector that all objects made so far are here to stay.

    Ray and torch bring a million of them; going through them again and again would be a tenth of
    the cost of a step.
    """
    gc.collect()
    gc.freeze()


def reachable(address: str) -> str:
    """Returns where the cluster's other machines find what listens on "host:port" of this one."""
    host, _, port = address.rpartition(":")
    if host not in ("0.0.0.0", "[::]"):
        return address
    import ray

    own = ray.util.get_node_ip_address()
    return f"[{own}]:{port}" if ":" in own else f"{own}:{port}"
