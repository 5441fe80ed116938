"""What each worker process of a run does first: log file, user's modules, garbage collector."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import sys
from pathlib import Path

from muxrl.orchestrator.user_modules import find_user_modules


def set_up(log_path: Path) -> None:
    """Sends this process's stdout, stderr and logging to a file, and finds the user's modules.

    Nothing goes to a pipe: one that nobody reads fills up and stops the process that writes to it.

    Args:
        log_path: appended to; its folder is made if it is missing (another machine of a cluster).
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


def settle() -> None:
    """Tells the garbage collector that all objects made so far are here to stay.

    Ray and torch bring a million of them; going through them again and again would be a tenth of
    the cost of a step.
    """
    gc.collect()
    gc.freeze()
