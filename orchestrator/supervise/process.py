"""What all processes of a run have in common: environment variables, reports, logs.

Heavy imports happen inside functions, so that the orchestrator's process stays light.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import os
import signal
import socket
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from muxrl.orchestrator.user_modules import find_user_modules, worker_variables

logger = logging.getLogger(__name__)
T = TypeVar("T")


ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Environment variables of every process; a server's `num_torch_threads` gives torch more."""
HOST = "MUXRL_HOST"
"""Environment variable of a process on a cluster: the address by which others reach it."""


def worker_environment() -> dict[str, str]:
    """Returns the environment variables of every process of a run."""
    python_path = os.environ.get("PYTHONPATH")  # processes on a cluster do not inherit it
    return {
        **ONE_THREAD,
        **worker_variables(),
        **({"PYTHONPATH": python_path} if python_path else {}),
    }


@dataclass(frozen=True, kw_only=True)
class ProcessReport:
    """A process's report, which the run fetches about once a second."""

    step_s: float = 0.0
    """How long its simulation has been in the current call; 0 if it is in none."""
    under_way: tuple[int, int] = (0, 0)
    """How far its evaluation is: the number of episodes that have ended, and the env steps of the
    longest open episode."""


def set_up(log_path: Path) -> None:
    """Sends this process's stdout, stderr and logging to a file, and finds the user's modules.

    A pipe would not do: if it is not read, it fills up and blocks the process that writes.

    Args:
        log_path: the file, which is appended to; its folder is made if it is missing, as on another
            machine of a cluster.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    faulthandler.enable()
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
        force=True,
    )
    find_user_modules()


def kill_group(pid: int) -> None:
    """Kills the process group that a process leads, or has led."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: for a zombie
        os.killpg(pid, signal.SIGKILL)


def pop_all(queue: deque[T]) -> list[T]:
    """Removes and returns all items of a queue, to which another thread may add meanwhile."""
    found = []
    with contextlib.suppress(IndexError):
        while True:
            found.append(queue.popleft())
    return found


def settle() -> None:
    """Exempts all objects made so far from garbage collection.

    Torch makes a million of them. Looking through them again and again would be a tenth of the cost
    of a step.
    """
    gc.collect()
    gc.freeze()


def reachable(address: str) -> str:
    """Returns the "host:port" by which other machines reach what listens at `address` here."""
    host, _, port = address.rpartition(":")
    if host not in ("0.0.0.0", "[::]"):
        return address
    own = os.environ.get(HOST) or _own_ip()
    return f"[{own}]:{port}" if ":" in own else f"{own}:{port}"


def _own_ip() -> str:
    """Returns the IP address from which this machine would reach others; nothing is sent."""
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((elsewhere, 9))  # reserved for documentation, RFC 5737 and 3849
            return str(sock.getsockname()[0])
    return "127.0.0.1"
