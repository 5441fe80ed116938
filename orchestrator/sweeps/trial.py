"""One trial of a sweep, as Ray Tune runs it: a whole muxrl run with its own servers.

The trial is a class because Tune lets a class clean up: a trial that the scheduler ends early saves
its checkpoints and writes its report, as any run does. (Tune would abandon a function's thread
wherever it is.)
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import tune

from muxrl.orchestrator.config import to_yaml
from muxrl.orchestrator.errors import RunFailed, RunIsRunning
from muxrl.orchestrator.launch.resuming import how_to_resume, locked, resume_at_checkpoint
from muxrl.orchestrator.launch.run import Run
from muxrl.orchestrator.records.rows import EvaluationRow
from muxrl.orchestrator.records.run_directory import RunDirectory, make_folder
from muxrl.orchestrator.storage.checkpoints import Manifest
from muxrl.orchestrator.storage.json_files import write_text
from muxrl.orchestrator.supervise.local import workers_for
from muxrl.orchestrator.supervise.process import set_up
from muxrl.orchestrator.sweeps.directory import LAST_FILE, Status, TrialRecord
from muxrl.orchestrator.sweeps.measure import Metric, progress_of
from muxrl.orchestrator.sweeps.plan import SweepPlan
from muxrl.orchestrator.user_modules import find_user_modules

METRIC = "metric"
"""The metric's name in Tune's results."""
METRIC_ENV_STEPS = "metric_env_steps"
"""Env steps of training before the metric was measured, at which schedulers compare trials."""
TIME_LEFT_S = "time_left_s"
"""Seconds until the trial stops at its present rate; absent if unknown."""
IS_FINISHED = "is_finished"
"""True in the last result of a trial that ran to its end; false if a scheduler ends the trial."""

TRIAL_LOG = "trial"
"""Name of a trial's process, after which its log file is named."""
_OVER = object()
_LOCK_PATIENCE_S = 60.0
"""How long an old trial whose sweep was killed may take to end; it takes seconds."""

logger = logging.getLogger(__name__)


def tune_config(record: TrialRecord, run_dir: Path) -> dict[str, Any]:
    """Returns a trial as a config for Tune; `trial_of` reads it back."""
    return {
        "trial": record.id,
        "assignment": record.assignment,
        "roles": record.roles,
        "parameters": record.parameters,
        "seed": record.seed,
        "run_dir": str(run_dir),
    }


def trial_of(config: Mapping[str, Any]) -> TrialRecord:
    """Returns the trial that `tune_config` turned into a config."""
    roles, parameters = (dict(config.get(key) or {}) for key in ("roles", "parameters"))
    return TrialRecord(config["trial"], config["assignment"], roles, parameters, config["seed"])


class Trial(tune.Trainable):
    """Plays a `Run` and reports its metric to Tune."""

    def setup(self, config: dict[str, Any], plan: SweepPlan | None = None) -> None:
        """Notes what to run; the first step starts it.

        Args:
            config: see `tune_config`.
            plan: of the sweep; `tune.with_parameters` always gives it.
        """
        assert plan is not None
        find_user_modules()
        self._plan = plan
        self._record = trial_of(config)
        self._path = Path(config["run_dir"])
        self._run: Run | None = None
        self._rounds: Iterator[None] = iter(())
        self._is_over = False
        self._queued: deque[EvaluationRow] = deque()
        self._reported: EvaluationRow | None = None
        """The evaluation that was reported last."""
        self._cleanup = contextlib.ExitStack()

    def step(self) -> dict[str, Any]:
        """Plays the run until the next report is due, or until its end.

        Raises:
            RunFailed: the run has failed; the text is for the sweep's table.
        """
        try:
            return self._step(self._run or self._start())
        except Exception as error:  # the sweep's table shows it
            cause = str(error)
            if not isinstance(error, RunFailed):
                logger.exception("the trial failed")
                log = RunDirectory(self._path).log(TRIAL_LOG)
                cause = f"{type(error).__name__}: {error}; its log: {log}"
            raise RunFailed(self._end("failed", cause)) from error

    def _start(self) -> Run:
        plan, record = self._plan, self._record
        experiment = plan.experiments.get(record.id)
        if experiment is None:
            experiment = plan.resolve(record.roles, record.parameters, record.seed)
        has_begun = self._path.exists()  # see `runner.resume_sweep`
        named = replace(experiment, config=replace(experiment.config, name=record.id))
        if has_begun:
            self._folder = RunDirectory.open(self._path)
        else:
            self._folder = make_folder(named, self._path)
        set_up(self._folder.log(TRIAL_LOG))
        self._lock()
        before: Manifest | None = None
        if has_begun:
            experiment, before = resume_at_checkpoint(experiment, self._folder, logger.warning)
            self._folder.write_config(to_yaml(named.config))  # the budget may be larger now
        self._run = Run(experiment, self._folder, before, self._queued.append, logger.warning)
        self._rounds = self._run.play(workers_for(experiment.config))
        return self._run

    def _lock(self) -> None:
        """Holds the run directory until the trial is over.

        It may have to wait: a trial whose sweep was killed ends by itself, but not at once.

        Raises:
            RunIsRunning: another process still has the directory.
        """
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                self._cleanup.enter_context(locked(self._folder))
            except RunIsRunning:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
            else:
                return

    def _step(self, run: Run) -> dict[str, Any]:
        due_at = time.monotonic() + self._plan.config.report_interval_s
        while True:
            if not self._is_over and next(self._rounds, _OVER) is _OVER:
                if run.not_evaluated:
                    raise RunFailed(run.not_evaluated)
                self._end("done")
                if run.unsaved:
                    raise RunFailed("; ".join(run.unsaved))
            # One evaluation at a time: schedulers compare fast and slow trials at the same ones.
            if is_reported := bool(self._queued):
                self._reported = self._queued.popleft()
            is_finished = self._is_over and not self._queued
            if is_reported or is_finished or time.monotonic() >= due_at:
                # A resumed run without a new evaluation reports its newest old one.
                result = self._result(run, self._reported or run.evaluated, is_new=is_reported)
                return result | ({IS_FINISHED: True, "done": True} if is_finished else {})

    def _result(
        self, run: Run, row: EvaluationRow | None, *, is_new: bool = False
    ) -> dict[str, Any]:
        """Returns how far the run has come, with its metric once an episode has ended.

        If evaluations are compared, `METRIC_ENV_STEPS` is only in the first result with each.
        """
        result = {
            "env_steps": run.tally.env_steps,
            "env_steps_per_s": run.tally.env_steps_per_s,
            "train_time_s": run.tally.time_s,
            "cpu_s": run.tally.cpu.now,
            IS_FINISHED: False,
        }
        if (left_s := run.snapshot().time_left_s) is not None:
            result[TIME_LEFT_S] = left_s
        config = self._plan.config
        metric = Metric(config.metric, run.experiment.servers)
        if (found := metric.value(row, run.tally.row())) is None:
            return result
        result |= {METRIC: found.metric, "metric_source": found.source}
        has_evaluations = row is not None or config.experiment.evaluation.interval_env_steps
        if is_new or config.metric.source == "training" or not has_evaluations:
            result[METRIC_ENV_STEPS] = found.env_steps  # only once, as each counts in a mean
        return result

    def cleanup(self) -> None:
        """Ends the run if it is not over, since the scheduler ends the trial early."""
        self._end("stopped_early")

    def _end(self, status: Status, cause: str = "") -> str:
        """Ends all processes, and writes the report and the trial's line; only the first call does.

        Returns:
            Why the trial has failed, and what can be done about it.
        """
        run = self._run
        if self._is_over or run is None:  # None: there is no directory yet
            return cause
        self._is_over = True
        if status in ("done", "failed"):
            cause = run.end(status, cause, how_to_resume).problem
        else:
            run.end("interrupted", "ended by the sweep")
        if run.unsaved and status != "failed":  # a trial without its last checkpoint is not done
            status, cause = "failed" if status == "done" else status, "; ".join(run.unsaved)
        run.close()
        progress = progress_of(self._folder, self._plan.config.metric)
        record = replace(self._record, status=status, cause=cause, **progress)
        # Written last: if this file exists, so do all others.
        write_text(self._folder.path / LAST_FILE, record.to_json() + "\n")
        self._cleanup.close()
        return cause
