"""The log of a sweep's trials, written as Tune reports them.

It outlives this process, and so is not left to Tune: Tune's snapshots are written now and then,
`trials.jsonl` before the next trial can begin.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle, tune

from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.runs.actors import cause_of_death
from muxrl.orchestrator.sweeps.directory import SweepDirectory
from muxrl.orchestrator.sweeps.trial import IS_FINISHED, METRIC, TRIAL_LOG
from muxrl.orchestrator.sweeps.trial_record import TrialRecord, TrialSpec

_WRITE_INTERVAL_S = 5.0
"""Between two writes of what trials report on their way; ends are written at once."""
CLEANUP_S = 180
"""For a trial that is ended early to save its checkpoints; then Tune kills it."""


class TrialLog(tune.Callback):
    """Keeps `trials.jsonl` while Tune runs the trials.

    Args:
        folder: of the sweep.
        records: of all trials.
    """

    def __init__(self, folder: SweepDirectory, records: list[TrialRecord]) -> None:
        self.folder = folder
        self.records = records
        self._by_id = {record.id: record for record in records}
        self._ending: list[TrialRecord] = []
        """Told to stop early, and still saving."""
        self._written_at = 0.0

    def add(self, specs: Sequence[TrialSpec]) -> None:
        """Adds trials that a searcher has made."""
        for spec in specs:
            self._by_id[spec.trial_id] = TrialRecord.of(spec)
            self.records.append(self._by_id[spec.trial_id])
        self._write()

    def refuse(self, specs: Sequence[TrialSpec], cause: str) -> None:
        """Adds trials that a searcher has made and that cannot be run."""
        self.add(specs)
        for spec in specs:
            self._by_id[spec.trial_id].status = "failed"
            self._by_id[spec.trial_id].cause = cause
        self._write()

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tune's call."""
        record = self._of(trial)
        record.status = "running"
        record.run_dir = str(Path(trial.config["run_dir"]).relative_to(self.folder.path))
        self._write()

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Tune's call."""
        self._take(self._of(trial), result)
        if time.monotonic() - self._written_at > _WRITE_INTERVAL_S:
            self._write()

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tune's call."""
        record = self._of(trial)
        self._take(record, trial.last_result)
        is_finished = (trial.last_result or {}).get(IS_FINISHED)
        record.status = "done" if is_finished else "stopped_early"
        if not is_finished:
            self._ending.append(record)
        self._write()

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Tune's call.

        When nothing is left to run, Tune waits ten seconds for the trials that it has stopped;
        saving may take longer.
        """
        if not self._ending or not all(trial.is_finished() for trial in trials):
            return
        deadline = time.monotonic() + CLEANUP_S
        while time.monotonic() < deadline and any(
            self.folder.final_record_of(record) is None for record in self._ending
        ):
            time.sleep(0.1)
        self._ending.clear()

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tune's call."""
        record = self._of(trial)
        record.status = "failed"
        record.cause = self._cause(trial, record)
        self._write()

    def close(self) -> None:
        """Writes the last state: trials that were still running were interrupted."""
        for record in self.records:
            if record.status == "running":
                record.status = "interrupted"
        self._write()

    def _of(self, trial: Any) -> TrialRecord:
        return self._by_id[trial.config["trial"]]

    @staticmethod
    def _take(record: TrialRecord, result: dict[str, Any] | None) -> None:
        if not result or "env_steps" not in result:
            return
        record.env_steps = int(result["env_steps"])
        record.time_s = float(result["train_time_s"])
        record.cpu_s = float(result["cpu_s"])
        if METRIC in result:
            record.metric = float(result[METRIC])
            record.metric_source = str(result["metric_source"])

    def _cause(self, trial: Any, record: TrialRecord) -> str:
        """Returns why a trial failed, in a sentence with its log."""
        final = self.folder.final_record_of(record)
        if final is not None and final.cause:
            return final.cause
        log = RunDirectory(self.folder.path / (record.run_dir or "")).log(TRIAL_LOG)
        error = _error_of(trial)
        if isinstance(error, ray.exceptions.RayTaskError):
            return f"{type(error.cause).__name__}: {error.cause}; its log: {log}"
        return f"the trial's process died ({cause_of_death(error)}); its log: {log}"

    def _write(self) -> None:
        self._written_at = time.monotonic()
        self.folder.write_trials(self.records)


def _error_of(trial: Any) -> Exception:
    """Returns the error of a trial that failed; Tune's storage does not hold it yet."""
    if trial.pickled_error_file is not None:
        with contextlib.suppress(OSError), open(trial.pickled_error_file, "rb") as file:
            return cloudpickle.load(file)
    return RuntimeError("Tune does not say why")
