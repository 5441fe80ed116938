"""Keeps ``trials.jsonl`` up to date while Tune runs the trials.

The file is written when Tune reports a change, before the next trial can begin. It has to be right
if this process dies, so Tune's snapshots, which are written now and then, are not enough.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle, tune

from muxrl.orchestrator.errors import RunFailed
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.supervise.cluster import cause_of_death
from muxrl.orchestrator.sweeps.directory import LAST_FILE, SweepDirectory, TrialRecord
from muxrl.orchestrator.sweeps.measure import progress_of
from muxrl.orchestrator.sweeps.trial import IS_FINISHED, TIME_LEFT_S, TRIAL_LOG

_WRITE_INTERVAL_S = 5.0
"""Seconds between two writes of the trials' progress; their ends are written at once."""
CLEANUP_S = 180
"""Seconds in which a trial that is ended early may save its checkpoints; then Tune kills it."""


class TrialLog(tune.Callback):
    """Keeps `trials.jsonl` up to date while Tune runs the trials.

    Args:
        folder: of the sweep.
        records: of all trials.
    """

    def __init__(self, folder: SweepDirectory, records: list[TrialRecord]) -> None:
        self.on_news: Callable[[Mapping[str, float]], None] = lambda left_s: None
        """Called with each change; gets by trial the seconds that it still takes, as it reports."""
        self._left_s: dict[str, float] = {}
        self.folder = folder
        self.records = records
        self._by_id = {record.id: record for record in records}
        self._ending: list[TrialRecord] = []
        """Trials that have to stop early, and are still saving."""
        self._written_at = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the terminal, which cannot be pickled; Tune never uses the pickle."""
        return {name: value for name, value in vars(self).items() if name != "on_news"}

    def add(self, records: Sequence[TrialRecord]) -> None:
        """Adds trials that a searcher has made; those whose experiment was refused have failed."""
        for record in records:
            self._by_id[record.id] = record
            self.records.append(record)
        self._write()

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Records that a trial runs; called by Tune."""
        record = self._of(trial)
        record.status = "running"
        record.run_dir = str(Path(trial.config["run_dir"]).relative_to(self.folder.path))
        # The line of an earlier end is not true any more.
        (self.folder.path / record.run_dir / LAST_FILE).unlink(missing_ok=True)
        self._write()

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Records how far a trial has come; called by Tune."""
        record = self._looked_at(trial)
        if TIME_LEFT_S in result:
            self._left_s[record.id] = float(result[TIME_LEFT_S])
        self.on_news(self._left_s)
        if time.monotonic() - self._written_at > _WRITE_INTERVAL_S:
            self._write()

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Records that a trial is done or stopped early; called by Tune."""
        record, last = self._looked_at(trial), trial.last_result or {}
        # A trial may have come to its end just when the scheduler ends it.
        if last.get(IS_FINISHED) or self._has_written_its_last(record):
            record.status = "done"
        else:
            record.status = "stopped_early"
            self._ending.append(record)
        self._write()

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Waits for the trials that are stopping early; called by Tune.

        When nothing is left to run, Tune waits only ten seconds for trials that it has stopped, but
        saving may take longer. So this waits for them.
        """
        if not self._ending or not all(trial.is_finished() for trial in trials):
            return
        deadline = time.monotonic() + CLEANUP_S
        while time.monotonic() < deadline and not all(
            map(self._has_written_its_last, self._ending)
        ):
            time.sleep(0.1)
        self._ending.clear()

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Records that a trial has failed; called by Tune."""
        record = self._looked_at(trial)
        record.status, record.cause = "failed", self._cause(trial, record)
        self._write()

    def close(self) -> None:
        """Writes the last state, in which trials that were still running are interrupted."""
        for number, record in enumerate(self.records):
            if record.status == "running":  # `current` corrects this if it has ended meanwhile
                self.records[number] = self.folder.current(replace(record, status="interrupted"))
        self._write()

    def _looked_at(self, trial: Any) -> TrialRecord:
        """Returns a trial's record, brought up to date from its run."""
        record = self._of(trial)
        run = RunDirectory(self.folder.path / (record.run_dir or ""))
        vars(record).update(progress_of(run, self.folder.metric))
        return record

    def _has_written_its_last(self, record: TrialRecord) -> bool:
        return (self.folder.path / (record.run_dir or "") / LAST_FILE).is_file()

    def _of(self, trial: Any) -> TrialRecord:
        return self._by_id[trial.config["trial"]]

    def _cause(self, trial: Any, record: TrialRecord) -> str:
        """Returns why a trial failed, in a sentence that names its log."""
        log = RunDirectory(self.folder.path / (record.run_dir or "")).log(TRIAL_LOG)
        error = _error_of(trial)
        if isinstance(error, ray.exceptions.RayTaskError):
            if isinstance(error.cause, RunFailed):  # its text names the log
                return str(error.cause)
            return f"{type(error.cause).__name__}: {error.cause}; its log: {log}"
        return f"the trial's process died ({cause_of_death(error)}); its log: {log}"

    def _write(self) -> None:
        self._written_at = time.monotonic()
        self.folder.write_trials(self.records)
        self.on_news(self._left_s)


def _error_of(trial: Any) -> Exception:
    """Returns the error of a trial that failed, from its local file; Tune has not stored it yet."""
    if trial.pickled_error_file is not None:
        with contextlib.suppress(OSError), open(trial.pickled_error_file, "rb") as file:
            return cloudpickle.load(file)
    return RuntimeError("Ray Tune gives no cause")
