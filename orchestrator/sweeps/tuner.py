"""The trials of a sweep on Ray Tune: places them, hears their reports, asks the scheduler.

``trials.jsonl`` is written as Tune reports. It outlives this process, and so is not left to Tune,
whose snapshots are written now and then: it is written before the next trial can begin.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle, tune

from muxrl.orchestrator.config import ExperimentConfig
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.supervise.cluster import cause_of_death
from muxrl.orchestrator.supervise.placement import bundles, strategy
from muxrl.orchestrator.sweeps.checks import CALLBACK_EXAMPLE
from muxrl.orchestrator.sweeps.directory import FINAL_RECORD_FILE, SweepDirectory, TrialRecord
from muxrl.orchestrator.sweeps.plan import SweepPlan
from muxrl.orchestrator.sweeps.schema import SweepConfig
from muxrl.orchestrator.sweeps.search import LearningSearch, TableSearch
from muxrl.orchestrator.sweeps.trial import (
    IS_FINISHED,
    METRIC,
    METRIC_ENV_STEPS,
    TIME_LEFT_S,
    TRIAL_LOG,
    Trial,
    take_in,
    trial_of,
)
from muxrl.servers.import_by_name import import_by_name

_WRITE_INTERVAL_S = 5.0
"""Between two writes of what trials report on their way; ends are written at once."""
CLEANUP_S = 180
"""For a trial that is ended early to save its checkpoints; then Tune kills it."""


def num_trials(plan: SweepPlan) -> int:
    """Returns how many trials the sweep runs in all."""
    config = plan.config
    if config.searcher == "random":
        return len(plan.trials)
    return config.num_samples * len(config.all_seeds)


def run_trials(plan: SweepPlan, trial_log: TrialLog) -> None:
    """Runs the trials that are not finished; returns when all are over, or Tune was told to end.

    Args:
        plan: of the sweep.
        trial_log: of all its trials; it is told of every change.
    """
    config = plan.config
    # Tune's own handler would end the loop and then wait for trials that nobody needs any more.
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
    # A trial that has not ended an episode yet has no metric.
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"
    os.environ.setdefault("TUNE_FORCE_TRIALCLEANUP_S", str(CLEANUP_S))
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # it prints even where it is to be silent
    os.environ.setdefault("TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S", "0")
    # Failures are reported with their causes at the end, not as Tune's tracebacks in between.
    os.environ["TUNE_PRINT_ALL_TRIAL_ERRORS"] = "0"
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    search = LearningSearch if config.searcher == "optuna" else TableSearch
    trainable = tune.with_resources(
        tune.with_parameters(Trial, plan=plan),
        lambda given: placement(plan.config_of(trial_of(given))),
    )
    tuner = tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            metric=METRIC,
            mode=config.metric.mode,
            search_alg=search(plan, trial_log),
            scheduler=_scheduler(config),
            num_samples=num_trials(plan),
            max_concurrent_trials=config.max_concurrent,
            trial_name_creator=_trial_name,
            trial_dirname_creator=_trial_name,
        ),
        run_config=tune.RunConfig(
            name=f"tune-{datetime.now():%Y%m%d-%H%M%S}",
            storage_path=str(trial_log.folder.path),
            callbacks=[trial_log, *_callbacks(config)],
            checkpoint_config=tune.CheckpointConfig(
                checkpoint_at_end=False
            ),  # servers write theirs
            verbose=0,
        ),
    )
    tuner.fit()


def _callbacks(config: SweepConfig) -> list[tune.Callback]:
    return [
        import_by_name(path, CALLBACK_EXAMPLE)(**arguments)
        for path, arguments in config.callbacks.items()
    ]


def placement(config: ExperimentConfig) -> tune.PlacementGroupFactory:
    """Returns where a trial's processes go, itself included, which only watches."""
    # Ray takes an empty first bundle as the trial's own, but has no group of nothing at all.
    wanted = [{}, *bundles(config)] if bundles(config) else [{"CPU": 0.001}]
    return tune.PlacementGroupFactory(wanted, strategy=strategy(config))


def _trial_name(trial: Any) -> str:
    return str(trial.config["trial"])


def _scheduler(config: SweepConfig) -> Any:
    """Returns Tune's scheduler; trials are compared at equal env steps of training."""
    scheduler, budget = config.scheduler, config.experiment.stop.env_steps
    if scheduler.kind == "none":
        return None
    assert budget is not None
    grace = scheduler.grace_env_steps or max(1, budget // 10)
    if scheduler.kind == "asha":
        return tune.schedulers.ASHAScheduler(
            time_attr=METRIC_ENV_STEPS,
            max_t=budget,
            grace_period=grace,
            reduction_factor=scheduler.reduction_factor,
            # The run ends by itself, and only after its final evaluation.
            stop_last_trials=False,
        )
    return _MedianStopping(
        time_attr=METRIC_ENV_STEPS,
        grace_period=grace,
        min_samples_required=scheduler.min_samples,
        # Else trials are paused for those that wait, and processes cannot be.
        min_time_slice=math.inf,
    )


class _MedianStopping(tune.schedulers.MedianStoppingRule):
    """Tune's, which takes a trial's last result for a measurement, even if it is none."""

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Tune's call."""
        num_before = len(self._results.get(trial, ()))
        super().on_trial_complete(tune_controller, trial, result)
        if METRIC_ENV_STEPS not in result:
            del self._results[trial][num_before:]
            if not num_before:
                del self._results[trial]


class TrialLog(tune.Callback):
    """Keeps `trials.jsonl` while Tune runs the trials.

    Args:
        folder: of the sweep.
        records: of all trials.
    """

    def __init__(self, folder: SweepDirectory, records: list[TrialRecord]) -> None:
        self.on_news: Callable[[Mapping[str, float]], None] = lambda left_s: None
        """Called with each change; with how long each trial still takes, as it says."""
        self._left_s: dict[str, float] = {}
        self.folder = folder
        self.records = records
        self._by_id = {record.id: record for record in records}
        self._ending: list[TrialRecord] = []
        """Told to stop early, and still saving."""
        self._written_at = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles it, and never uses that; a terminal cannot be pickled."""
        return {name: value for name, value in vars(self).items() if name != "on_news"}

    def add(self, records: Sequence[TrialRecord]) -> None:
        """Adds trials that a searcher has made."""
        for record in records:
            self._by_id[record.id] = record
            self.records.append(record)
        self._write()

    def refuse(self, records: Sequence[TrialRecord], cause: str) -> None:
        """Adds trials that a searcher has made and that cannot be run."""
        for record in records:
            record.status, record.cause = "failed", cause
        self.add(records)

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tune's call."""
        record = self._of(trial)
        record.status = "running"
        record.run_dir = str(Path(trial.config["run_dir"]).relative_to(self.folder.path))
        # What the trial said of its end before is not true any more.
        (self.folder.path / record.run_dir / FINAL_RECORD_FILE).unlink(missing_ok=True)
        self._write()

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Tune's call."""
        record = self._of(trial)
        take_in(record, result)
        if TIME_LEFT_S in result:
            self._left_s[record.id] = float(result[TIME_LEFT_S])
        self.on_news(self._left_s)
        if time.monotonic() - self._written_at > _WRITE_INTERVAL_S:
            self._write()

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Tune's call."""
        record, last = self._ended(trial), trial.last_result or {}
        if last.get(IS_FINISHED):
            take_in(record, last)
            record.status = "done"
        elif record.status != "done":  # ended early, and not over already
            take_in(record, last)
            record.status = "stopped_early"
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
        record = self._ended(trial)
        record.cause = record.cause or self._cause(trial, record)
        record.status = "failed"
        self._write()

    def close(self) -> None:
        """Writes the last state: trials that were still running were interrupted."""
        for record in self.records:
            if record.status == "running":
                record.status = "interrupted"
        self._write()

    def _ended(self, trial: Any) -> TrialRecord:
        """Returns a trial's record, which holds what the trial itself has said of its end."""
        record = self._of(trial)
        vars(record).update(vars(self.folder.current(record)))
        return record

    def _of(self, trial: Any) -> TrialRecord:
        return self._by_id[trial.config["trial"]]

    def _cause(self, trial: Any, record: TrialRecord) -> str:
        """Returns why a trial failed that does not say so itself, in a sentence with its log."""
        log = RunDirectory(self.folder.path / (record.run_dir or "")).log(TRIAL_LOG)
        error = _error_of(trial)
        if isinstance(error, ray.exceptions.RayTaskError):
            return f"{type(error.cause).__name__}: {error.cause}; its log: {log}"
        return f"the trial's process died ({cause_of_death(error)}); its log: {log}"

    def _write(self) -> None:
        self._written_at = time.monotonic()
        self.folder.write_trials(self.records)
        self.on_news(self._left_s)


def _error_of(trial: Any) -> Exception:
    """Returns the error of a trial that failed; Tune's storage does not hold it yet."""
    if trial.pickled_error_file is not None:
        with contextlib.suppress(OSError), open(trial.pickled_error_file, "rb") as file:
            return cloudpickle.load(file)
    return RuntimeError("Tune does not say why")
