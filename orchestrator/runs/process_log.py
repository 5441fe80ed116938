"""A log file of its own for every process: all that it prints goes there, nothing to a pipe.

A pipe that nobody reads fills up and stops the process that writes to it.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
from pathlib import Path


def log_to(path: Path) -> None:
    """Sends this process's stdout, stderr and logging to a file, for good.

    Args:
        path: appended to; its folder is made if it is missing (another machine of a cluster).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
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
