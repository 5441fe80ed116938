"""One tracker told from a run's files: by a process that follows the run, or when it is over.

The process ends soon after its standard input does, which is the run's. Standard output is for one
sentence, on why the tracker has failed; all that is printed goes to the log.
"""

from __future__ import annotations

import heapq
import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from muxrl.orchestrator.errors import MalformedMetrics
from muxrl.orchestrator.records.metrics import whole_lines
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.supervise.child import when_alone
from muxrl.orchestrator.trackers.session import Session, describe, state_to_tell
from muxrl.orchestrator.user_modules import find_user_modules

Row = tuple[str, Mapping[str, Any]]
"""The name of a file of metrics, and a row of it."""
_INTERVAL_S = 1.0
"""Between two looks at the files, which grow about as often."""
_NICENESS = 10
"""Whatever the run has to do comes first."""


def main() -> None:
    """Follows a run until it is over; exits with code 1 once the tracker fails."""
    tracker, path, resumed_at, lengths = json.loads(sys.argv[1])
    folder = RunDirectory(Path(path))
    os.nice(_NICENESS)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    find_user_modules()
    is_over = threading.Event()
    when_alone(is_over.set)
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)
        try:
            session = Session(tracker, describe(folder, resumed_at))
            is_last = False
            while not is_last:
                is_last = is_over.wait(_INTERVAL_S)
                for name, record in new_rows(folder, lengths):
                    session.take(name, record)
            session.end(state_to_tell(folder))
        except Exception as error:  # noqa: BLE001  # a tracker may raise anything
            traceback.print_exc()
            answer.write(describe_failure(error))
            answer.flush()
            os._exit(1)  # what it does at its exit may wait for the same server


def new_rows(folder: RunDirectory, lengths: dict[str, int]) -> Iterator[Row]:
    """Yields the rows of all files by env steps, those of one file as they were written.

    Args:
        folder: of the run.
        lengths: how much of each file was read, in bytes; it is kept up to date.

    Raises:
        MalformedMetrics: a line is broken.
        OSError: a file cannot be read.
    """
    files = sorted(folder.metrics.glob("*.jsonl"))
    rows = (_rows_of(path, lengths) for path in files)
    return heapq.merge(*rows, key=lambda row: int(row[1]["env_steps"]))


def _rows_of(path: Path, lengths: dict[str, int]) -> Iterator[Row]:
    with path.open("rb") as file:
        # A server that is started again drops what it had recorded since its checkpoint.
        begin = min(lengths.get(path.name, 0), file.seek(0, os.SEEK_END))
        if begin:  # where it has grown past that since, this is within a line
            file.seek(begin - 1)
            begin += len(file.readline()) - 1
        lengths[path.name] = begin
        for place, line in whole_lines(file, begin):
            lengths[path.name] = place + len(line)
            if not line.isspace():
                try:
                    yield path.stem, msgspec.json.decode(line, type=dict)
                except msgspec.DecodeError as error:
                    file.seek(0)
                    number = file.read(place).count(b"\n") + 1
                    raise MalformedMetrics(path, number, str(error)) from None


def describe_failure(error: Exception) -> str:
    """Returns an error's class and the first line of what it says."""
    text = " ".join(str(error).splitlines()[:1])
    return f"{type(error).__name__}: {text}"
