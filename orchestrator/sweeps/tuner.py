"""The trials of a sweep on Ray Tune: it places them, hears their reports, asks the scheduler."""

from __future__ import annotations

import functools
import logging
import os
import sys
from datetime import datetime
from typing import Any

from ray import tune

from muxrl.orchestrator.config.seeds import derive_seed
from muxrl.orchestrator.sweeps.capacity import placement
from muxrl.orchestrator.sweeps.plan import SweepPlan
from muxrl.orchestrator.sweeps.schema import SweepConfig
from muxrl.orchestrator.sweeps.search import TableSearch
from muxrl.orchestrator.sweeps.suggestions import Suggestions, make_optuna
from muxrl.orchestrator.sweeps.trial import METRIC, METRIC_ENV_STEPS, Trial, spec_of
from muxrl.orchestrator.sweeps.trial_log import CLEANUP_S, TrialLog


def num_trials(plan: SweepPlan) -> int:
    """Returns how many trials the sweep runs in all."""
    config = plan.config
    if config.searcher == "random":
        return len(plan.trials)
    return config.num_samples * max(1, len(config.seeds))


def run_trials(plan: SweepPlan, trial_log: TrialLog, *, should_print: bool) -> None:
    """Runs the trials that are not finished; returns when all are over, or Tune was told to end.

    Args:
        plan: of the sweep.
        trial_log: of all its trials; it is told of every change.
        should_print: whether Tune prints its table of trials.
    """
    config = plan.config
    # Tune's own handler would end the loop and then wait for trials that nobody needs any more.
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
    # A trial that has not ended an episode yet has no metric.
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"
    os.environ.setdefault("TUNE_FORCE_TRIALCLEANUP_S", str(CLEANUP_S))
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # its other table has no columns of our own
    os.environ.setdefault("TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S", "0")
    # Failures are reported with their causes at the end, not as Tune's tracebacks in between.
    os.environ["TUNE_PRINT_ALL_TRIAL_ERRORS"] = "0"
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    unfinished = [
        spec
        for spec, record in zip(plan.trials, trial_log.records, strict=True)
        if not record.is_finished and record.assignment
    ]
    more = None
    if config.searcher == "optuna":
        make = functools.partial(make_optuna, seed=derive_seed(config.seed, "searcher"))
        more = Suggestions(plan, METRIC, trial_log.records, make, trial_log.add, trial_log.refuse)
    search = TableSearch(
        unfinished,
        trial_log.folder,
        METRIC,
        config.metric.mode,
        more,
        columns=tuple(config.parameters),
    )
    trainable = tune.with_resources(
        tune.with_parameters(Trial, plan=plan), lambda c: placement(_config_of(plan, c))
    )
    tuner = tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            metric=METRIC,
            mode=config.metric.mode,
            search_alg=search,
            scheduler=_scheduler(config),
            num_samples=num_trials(plan),
            max_concurrent_trials=config.max_concurrent,
            trial_name_creator=_trial_name,
            trial_dirname_creator=_trial_name,
        ),
        run_config=tune.RunConfig(
            name=f"tune-{datetime.now():%Y%m%d-%H%M%S}",
            storage_path=str(trial_log.folder.path),
            callbacks=[trial_log],
            checkpoint_config=tune.CheckpointConfig(
                checkpoint_at_end=False
            ),  # servers write theirs
            verbose=1 if should_print else 0,
            progress_reporter=_reporter(plan),
        ),
    )
    tuner.fit()


def _trial_name(trial: Any) -> str:
    return str(trial.config["trial"])


def _config_of(plan: SweepPlan, config: dict[str, Any]) -> Any:
    return plan.config_of(spec_of(config))


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
    return tune.schedulers.MedianStoppingRule(
        time_attr=METRIC_ENV_STEPS,
        grace_period=grace,
        min_samples_required=scheduler.min_samples,
    )


class _Table(tune.CLIReporter):
    """Tune's table, without its lines on temporary folders, which are removed at the end."""

    def report(self, trials: list[Any], done: bool, *sys_info: str) -> None:
        """Tune's call."""
        text = self._progress_str(trials, done, *sys_info).partition("Number of errored trials")[0]
        kept = [line for line in text.splitlines() if not line.startswith("Result logdir")]
        sys.stdout.write("\n".join(kept) + "\n")
        sys.stdout.flush()


def _reporter(plan: SweepPlan) -> tune.CLIReporter:
    parameters = {f"columns/{key}": key.split(".")[-1] for key in plan.config.parameters}
    return _Table(
        metric_columns={
            "env_steps": "env steps",
            "env_steps_per_s": "steps/s",
            METRIC: f"return ({plan.config.metric.of})",
            "metric_source": "of",
        },
        parameter_columns=parameters or {"seed": "seed"},
        max_progress_rows=40,
        max_column_length=48,
        # Not to fill a file or CI log with tables.
        max_report_frequency=5 if sys.stdout.isatty() else 60,
        print_intermediate_tables=True,
    )
