"""Runs the trials of a sweep on Ray Tune, with its placement and schedulers."""

from __future__ import annotations

import logging
import math
import os
from datetime import datetime
from typing import Any

from ray import tune

from muxrl.orchestrator.config import ExperimentConfig
from muxrl.orchestrator.supervise.placement import bundles, strategy
from muxrl.orchestrator.sweeps.checks import CALLBACK_EXAMPLE
from muxrl.orchestrator.sweeps.plan import SweepPlan
from muxrl.orchestrator.sweeps.schema import SweepConfig
from muxrl.orchestrator.sweeps.search import LearningSearch, TableSearch
from muxrl.orchestrator.sweeps.trial import METRIC, METRIC_ENV_STEPS, Trial, trial_of
from muxrl.orchestrator.sweeps.trial_log import CLEANUP_S, TrialLog
from muxrl.servers.import_by_name import import_by_name


def run_trials(plan: SweepPlan, trial_log: TrialLog) -> None:
    """Runs the trials that are not finished, until all are over or Tune is interrupted.

    Args:
        plan: of the sweep.
        trial_log: the log of all trials, which records every change.
    """
    config = plan.config
    # Tune's handler would end the loop and then wait for trials that are not needed any more.
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
    # A trial has no metric before its first episode has ended.
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"
    os.environ.setdefault("TUNE_FORCE_TRIALCLEANUP_S", str(CLEANUP_S))
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # the new output prints even with verbose=0
    os.environ.setdefault("TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S", "0")
    # Failures are shown with their causes at the end, not as tracebacks of Tune in between.
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
            num_samples=plan.num_trials,
            max_concurrent_trials=config.max_concurrent,
            trial_name_creator=_trial_name,
            trial_dirname_creator=_trial_name,
        ),
        run_config=tune.RunConfig(
            name=f"tune-{datetime.now():%Y%m%d-%H%M%S}",
            storage_path=str(trial_log.folder.path),
            callbacks=[trial_log, *_callbacks(config)],
            # The servers write checkpoints, not Tune.
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
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
    """Returns the placement of a trial's processes, and of the trial itself, which only watches."""
    # Ray takes an empty first bundle for the trial itself, but refuses a group of nothing else.
    wanted = [{}, *bundles(config).values()] if bundles(config) else [{"CPU": 0.001}]
    return tune.PlacementGroupFactory(wanted, strategy=strategy(config))


def _trial_name(trial: Any) -> str:
    return str(trial.config["trial"])


def _scheduler(config: SweepConfig) -> Any:
    """Returns Tune's scheduler, which compares trials at equal env steps of training."""
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
            # A run ends by itself, after its final evaluation.
            stop_last_trials=False,
        )
    return _MedianStopping(
        time_attr=METRIC_ENV_STEPS,
        grace_period=grace,
        min_samples_required=scheduler.min_samples,
        # Tune must not pause trials for waiting ones, since processes cannot be paused.
        min_time_slice=math.inf,
    )


class _MedianStopping(tune.schedulers.MedianStoppingRule):
    """Tune's rule, corrected: a trial's last result counts only if it is a measurement."""

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Drops a last result that is no measurement; called by Tune."""
        num_before = len(self._results.get(trial, ()))
        super().on_trial_complete(tune_controller, trial, result)
        if METRIC_ENV_STEPS not in result:
            del self._results[trial][num_before:]
            if not num_before:
                del self._results[trial]
