"""One trial of a sweep, as Ray Tune runs it: a whole muxrl run with servers of its own.

A class and not a function, since Tune asks a class to clean up: a trial that the scheduler ends
early saves its checkpoints and writes its report as any run does. (A function's thread is left
behind in the middle of what it does.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import tune

from muxrl.orchestrator.config import Experiment, ExperimentConfig
from muxrl.orchestrator.records.json_files import write_text
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.new_run import make_folder
from muxrl.orchestrator.reports.report import write_report
from muxrl.orchestrator.runs.failures import RunFailed
from muxrl.orchestrator.runs.placement import bundles, strategy
from muxrl.orchestrator.runs.process_log import log_to
from muxrl.orchestrator.runs.run import Run
from muxrl.orchestrator.sweeps.directory import OUTCOME_FILE, Status, TrialRecord
from muxrl.orchestrator.sweeps.metric import measure
from muxrl.orchestrator.sweeps.plan import Row, SweepPlan

METRIC = "return"
"""What Tune knows the metric as."""
METRIC_ENV_STEPS = "metric_env_steps"
"""Env steps of training before the metric was measured: what schedulers compare at."""
IS_FINISHED = "is_finished"
"""True in a trial's own last result; a scheduler's last one has it false."""

_LOG = "trial.log"

logger = logging.getLogger(__name__)


def tune_config(row: Row, run_dir: Path, columns: Sequence[str] = ()) -> dict[str, Any]:
    """Returns a trial's config as Tune carries it about; `row_of` reads it back.

    `columns` are the parameters that Tune's table shows. It wants them of every trial, also of
    one whose assignment has no use for them.
    """
    return {
        "trial": row.trial_id,
        "assignment": row.assignment,
        "roles": row.roles,
        "parameters": row.parameters,
        "columns": {key: row.parameters.get(key, "") for key in columns},
        "seed": row.seed,
        "run_dir": str(run_dir),
    }


def row_of(config: Mapping[str, Any]) -> Row:
    """Returns the row that `tune_config` was given."""
    return Row(
        config["trial"],
        config["assignment"],
        dict(config.get("roles") or {}),
        dict(config.get("parameters") or {}),
        config["seed"],
    )


def placement(config: ExperimentConfig) -> tune.PlacementGroupFactory:
    """Returns where a trial's processes go, itself included, which only watches."""
    # Ray takes an empty first bundle as the trial's own, but has no group of nothing at all.
    wanted = [{}, *bundles(config)] if bundles(config) else [{"CPU": 0.001}]
    return tune.PlacementGroupFactory(wanted, strategy=strategy(config))


class Trial(tune.Trainable):
    """Holds a `Run` and reports its metric."""

    def setup(self, config: dict[str, Any], plan: SweepPlan | None = None) -> None:
        """Takes note of what to do; the first step begins with it.

        Args:
            config: see `tune_config`.
            plan: the sweep's; always given, by `tune.with_parameters`.
        """
        assert plan is not None
        self._plan = plan
        self._row = row_of(config)
        self._path = Path(config["run_dir"])
        self._run: Run | None = None
        self._is_over = False

    def step(self) -> dict[str, Any]:
        """Lets the run go on until the next report is due, or its end.

        Raises:
            RunFailed: something of it died.
            ConfigError: a searcher has drawn what the experiment cannot be.
            OSError: the run directory cannot be made or written to.
        """
        try:
            return self._step(self._run or self._start())
        except RunFailed as error:
            self._end("failed", str(error))
            raise
        except Exception as error:  # whatever it is goes on, and is in the sweep's table
            logger.exception("the trial failed")
            log = self._path / "logs" / _LOG
            self._end("failed", f"{type(error).__name__}: {error}; its log: {log}")
            raise

    def _start(self) -> Run:
        plan, row = self._plan, self._row
        experiment = plan.experiments.get(row.trial_id)
        if experiment is None:
            experiment = plan.resolve(row.roles, row.parameters, row.seed)
        folder = make_folder(_named(experiment, row.trial_id), self._path)
        log_to(folder.logs / _LOG)
        self._folder = folder
        self._metrics = MetricsWriter(folder, experiment.config.tensorboard)
        self._run = Run(experiment, folder, self._metrics)
        self._run.start()
        self._run.begin()
        return self._run

    def _step(self, run: Run) -> dict[str, Any]:
        due_at = time.monotonic() + self._plan.config.report_interval_s
        while True:
            if run.watch():
                run.finish()
                if unsaved := self._end("done"):
                    raise RunFailed("; ".join(unsaved))
                return {**self._result(run), IS_FINISHED: True, "done": True}
            if time.monotonic() >= due_at:
                return self._result(run)

    def _result(self, run: Run) -> dict[str, Any]:
        result: dict[str, Any] = {
            "env_steps": run.tally.env_steps,
            "env_steps_per_s": run.tally.env_steps_per_s,
            "train_time_s": run.tally.time_s,
            "cpu_s": run.tally.cpu_s,
            IS_FINISHED: False,
        }
        measured = measure(run, self._plan.config.metric)
        if measured is not None:
            result[METRIC] = measured.value
            result[METRIC_ENV_STEPS] = measured.env_steps
            result["metric_source"] = measured.source
        return result

    def cleanup(self) -> None:
        """Ends the run if it is not over: the scheduler has seen enough of it."""
        self._end("stopped_early")

    def _end(self, status: Status, cause: str = "") -> list[str]:
        """Ends all processes, and writes the report and the outcome; once.

        Returns:
            What could not be saved: a trial is not done without.
        """
        run, row = self._run, self._row
        if self._is_over or run is None:  # None: it never came to have a directory
            return []
        self._is_over = True
        unsaved = run.stop()
        if unsaved and status != "failed":
            status, cause = "failed" if status == "done" else status, "; ".join(unsaved)
        self._metrics.close()
        if run.has_started:
            write_report(self._folder)
        result = self._result(run)
        record = TrialRecord(
            id=row.trial_id,
            assignment=row.assignment,
            roles=row.roles,
            parameters=row.parameters,
            seed=row.seed,
            status=status,
            metric=result.get(METRIC),
            metric_source=result.get("metric_source", ""),
            env_steps=result["env_steps"],
            time_s=result["train_time_s"],
            cpu_s=result["cpu_s"],
            cause=cause,
        )
        # The last thing: who finds it knows that all the rest is there.
        write_text(self._folder.path / OUTCOME_FILE, record.to_json() + "\n")
        return unsaved


def _named(experiment: Experiment, trial_id: str) -> Experiment:
    return replace(experiment, config=replace(experiment.config, name=trial_id))
