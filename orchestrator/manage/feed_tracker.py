"""Sends the records of a finished run to a tracker, as if it had tracked the run."""

from __future__ import annotations

from pathlib import Path

from muxrl.orchestrator.errors import CannotTrack, MalformedMetrics
from muxrl.orchestrator.launch.resuming import locked
from muxrl.orchestrator.records.run_directory import TRIALS_FILE, RunDirectory
from muxrl.orchestrator.sweeps.directory import SweepDirectory
from muxrl.orchestrator.trackers.session import (
    Session,
    describe,
    describe_failure,
    end_state,
    new_rows,
)


def runs_in(path: Path) -> list[RunDirectory]:
    """Returns the run at `path`, or if it is a sweep, all of its trials that have begun.

    Raises:
        NotARunDirectory: it is neither a run nor a sweep.
        NotASweepDirectory: the sweep's table of trials is broken.
    """
    if not (path / TRIALS_FILE).is_file():
        return [RunDirectory.open(path)]
    sweep = SweepDirectory.open(path)
    return [RunDirectory.open(run) for record in sweep.trials() if (run := sweep.run_of(record))]


def feed(folder: RunDirectory, name: str) -> tuple[int, str]:
    """Sends all records of a run to a tracker, as a new run of that tracker.

    Args:
        folder: the directory of a run that is over, however it ended.
        name: the tracker's name; see `muxrl.orchestrator.config.trackers`.

    Returns:
        How many rows were sent, and the tracker's name or id for the run.

    Raises:
        NotARunDirectory, MalformedMetrics: a file is absent or broken.
        RunIsRunning: the run still goes on.
        CannotTrack: the tracker has failed.
    """
    run = describe(folder)
    num_rows = 0
    with locked(folder):
        state = end_state(folder)
        try:
            session = Session(name, run)
            for file, record in new_rows(folder, {}):
                session.receive(file, record)
                num_rows += 1
            session.end(state)
        except MalformedMetrics:
            raise
        except Exception as error:  # a tracker may raise anything
            raise CannotTrack(
                f"the tracker {name!r} has failed after {num_rows:,} rows of {folder.path}: "
                f"{describe_failure(error)}"
            ) from error
    return num_rows, session.known_as
