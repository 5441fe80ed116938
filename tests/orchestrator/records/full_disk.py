"""Runs Python where no file may grow beyond a size: a full disk for one process alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BEGIN = """
import resource
from pathlib import Path
from muxrl.orchestrator.errors import CannotRecord
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.run_directory import RunDirectory

run = RunDirectory(Path({path!r}))
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

def give_room(num_bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes if num_bytes >= 0 else hard, hard))
"""


def with_little_room(path: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Runs a program for the run directory `path`.

    The program finds `run`, and `give_room(n)`: from then on files have at most n bytes, with -1
    any number. Python ignores SIGXFSZ, so that a write beyond the limit writes what fits, and the
    next one raises EFBIG.
    """
    return subprocess.run(
        [sys.executable, "-c", BEGIN.format(path=str(path)) + program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
