"""A sweep from its plan to its end: on Ray Tune, resumable, and no trial's failure is the end.

Tune places trials, hears their reports, and asks scheduler and searcher. What has to outlive this
process is written here and not left to Tune: its snapshots come now and then, `trials.jsonl` is
written before the next trial can begin.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle, tune
from rich.console import Console

from muxrl.orchestrator.config.seeds import derive_seed
from muxrl.orchestrator.records.json_files import write_text
from muxrl.orchestrator.runs.failures import RunFailed, cause_of_death
from muxrl.orchestrator.runs.local_ray import (
    join_ray,
    start_local_ray,
    stop_local_ray,
    worker_environment,
)
from muxrl.orchestrator.runs.placement import cpus_wanted
from muxrl.orchestrator.runs.signals import claim_signals, ignore_signals, interruptible
from muxrl.orchestrator.sweeps.assignments import Cast
from muxrl.orchestrator.sweeps.directory import Lock, SweepDirectory, TrialRecord
from muxrl.orchestrator.sweeps.load import load_resumed, to_yaml
from muxrl.orchestrator.sweeps.parameters import active, settings
from muxrl.orchestrator.sweeps.plan import Row, SweepPlan, make_plan
from muxrl.orchestrator.sweeps.result import SweepResult
from muxrl.orchestrator.sweeps.schema import SweepConfig
from muxrl.orchestrator.sweeps.search import Suggestions, TableSearch, make_optuna
from muxrl.orchestrator.sweeps.trial import (
    IS_FINISHED,
    METRIC,
    METRIC_ENV_STEPS,
    Trial,
    placement,
)

_WRITE_INTERVAL_S = 5.0
"""Between two writes of what trials report on their way; ends are written at once."""
_CLEANUP_S = 180
"""For a trial that is ended early to save its checkpoints; Tune kills it then."""


def start_sweep(
    config: SweepConfig,
    sweep_dir: Path | None = None,
    *,
    console: Console | None = None,
) -> SweepResult:
    """Runs all trials of a sweep.

    Ctrl-C and SIGTERM end it cleanly: finished trials are kept, unfinished ones are begun again by
    `resume_sweep`.

    Args:
        config: the sweep.
        sweep_dir: its directory, which must not exist yet; None makes one under `sweeps_dir`.
        console: where to show what is going on; None says nothing.

    Raises:
        ConfigError: with all that is wrong with it or any of its trials; nothing was started.
        OSError: the directory is there already, or cannot be made.
    """
    plan = make_plan(config)
    if sweep_dir is None:
        folder = SweepDirectory.create(Path(config.sweeps_dir), config.name, datetime.now())
    else:
        folder = SweepDirectory.create_at(sweep_dir)
    write_text(folder.config_file, to_yaml(config))
    records = [_new_record(row) for row in plan.rows]
    with folder.locked() as lock:
        folder.write_trials(records)
        return _run(plan, folder, records, lock, console)


def resume_sweep(
    sweep_dir: Path,
    overrides: Sequence[str] = (),
    *,
    console: Console | None = None,
) -> SweepResult:
    """Goes on with a sweep: finished trials are kept, all others begin again.

    Args:
        sweep_dir: its directory.
        overrides: ``key=value`` items that leave the trials what they are.
        console: where to show what is going on; None says nothing.

    Raises:
        NotASweepDirectory: it is none.
        SweepIsRunning: another process runs it.
        ConfigError: it cannot run any more, as its simulation has changed for one.
    """
    folder = SweepDirectory.open(sweep_dir)
    # Locked before anything is read: whoever runs it now may be finishing trials.
    with folder.locked() as lock:
        plan = make_plan(load_resumed(folder.config_file, overrides))
        records = [_resumed(record, folder) for record in folder.trials()]
        plan.rows = [Row(r.id, r.assignment, r.roles, r.parameters, r.seed) for r in records]
        return _run(plan, folder, records, lock, console)


def _new_record(row: Row) -> TrialRecord:
    return TrialRecord(row.trial_id, row.assignment, row.roles, row.parameters, row.seed)


def _resumed(record: TrialRecord, folder: SweepDirectory) -> TrialRecord:
    """Returns a trial as it stands: one that ended just before the sweep died is done, too.

    One that says it was stopped early may have been told so by the sweep's own end.
    """
    if record.is_finished or not record.assignment:  # refused: it would be again
        return record
    outcome = folder.outcome_of(record)
    if outcome is not None and outcome.status == "done" and outcome.id == record.id:
        return replace(outcome, run_dir=record.run_dir)
    return TrialRecord(record.id, record.assignment, record.roles, record.parameters, record.seed)


def _run(
    plan: SweepPlan,
    folder: SweepDirectory,
    records: list[TrialRecord],
    lock: Lock,
    console: Console | None,
) -> SweepResult:
    say = console.print if console is not None else _say_nothing
    num_kept = sum(record.is_finished for record in records)
    total = _num_trials(plan)
    kept = f", {num_kept} of them finished before" if num_kept else ""
    say(f"sweep directory: {folder.path}", soft_wrap=True, highlight=False)
    say(f"{total} trials{kept}", highlight=False)
    book = Book(folder, records)
    if num_kept == total:
        book.close()
        return SweepResult(folder.path, tuple(book.records), plan.config)
    is_interrupted = False
    with interruptible(), contextlib.ExitStack() as ray_session:
        try:
            try:
                lock.note(ray_session.enter_context(sweep_ray(plan)))
                claim_signals()
                for note in _placement_notes(plan):
                    say(note, soft_wrap=True, highlight=False)
                _tune(plan, book, console)
            finally:
                ignore_signals()
        except KeyboardInterrupt:
            is_interrupted = True
        finally:
            book.close()
            ray_session.close()
            lock.note(None)
    # Tune ends of itself, too, when told to (SIGUSR1).
    is_interrupted |= any(not record.is_over for record in book.records)
    return SweepResult(folder.path, tuple(book.records), plan.config, is_interrupted)


def _say_nothing(*_: Any, **__: Any) -> None:
    pass


def _num_trials(plan: SweepPlan) -> int:
    config = plan.config
    if config.searcher == "random":
        return len(plan.rows)
    return config.num_samples * max(1, len(config.seeds))


@contextlib.contextmanager
def sweep_ray(plan: SweepPlan) -> Iterator[str | None]:
    """The cluster that the sweep names, or a local Ray, while the ``with`` block lasts.

    One that this process is connected to already is used, and left alone. Yields the folder of a
    local one that was started here.

    Raises:
        RunFailed: it did not start.
    """
    config = plan.config
    if ray.is_initialized():
        yield None
        return
    # Trials find their run directories as this process does.
    environment = {**worker_environment(), "RAY_CHDIR_TO_TRIAL_DIR": "0"}
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    try:
        if config.address:
            join_ray(config.address, environment)
            path = None
        else:
            path = start_local_ray(local_num_cpus(plan), env_vars=environment)
    except Exception as error:  # Ray may raise anything
        raise RunFailed(f"Ray did not start: {type(error).__name__}: {error}") from error
    try:
        yield path
    finally:
        if path is None:
            ray.shutdown()
        else:
            stop_local_ray(path)


def local_num_cpus(plan: SweepPlan) -> int:
    """Returns the logical CPUs of a local Ray: the machine's, and enough for what was asked."""
    wanted = [sum(cpus_wanted(plan.config_of(row))) for row in plan.rows if row.assignment]
    # A searcher has made no rows yet.
    wanted = wanted or [
        sum(cpus_wanted(plan.resolve(cast, _first_values(plan.config, cast), 0).config))
        for cast in plan.casts
    ]
    most = max(wanted, default=1.0) * (plan.config.max_concurrent or 1)
    return max(os.cpu_count() or 1, math.ceil(most))


def _first_values(config: SweepConfig, cast: Cast) -> dict[str, Any]:
    return next(settings(active(config.parameters, set(cast.values())), 1, config.seed))


def _placement_notes(plan: SweepPlan) -> Iterator[str]:
    """Yields why trials may wait for ever; a cluster that grows can still make room for them."""
    needs = [(row, cpus_wanted(plan.config_of(row))) for row in plan.rows if row.assignment]
    if not plan.config.address or not needs:
        return
    row, cpus = max(needs, key=lambda need: sum(need[1]))
    largest = max(node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"])
    if sum(cpus) > largest and placement(plan.config_of(row)).strategy == "STRICT_PACK":
        yield (
            f"note: trial {row.trial_id} takes {sum(cpus):g} CPUs on one machine, since its "
            f"servers listen on the loopback address, and the largest one has {largest:g}; it "
            "waits until there is a larger one"
        )


def _tune(plan: SweepPlan, book: Book, console: Console | None) -> None:
    config = plan.config
    # Its own handler would end the loop and then wait for trials that nobody needs any more.
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
    # A trial that has not ended an episode yet has no metric.
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"
    os.environ.setdefault("TUNE_FORCE_TRIAL_CLEANUP_S", str(_CLEANUP_S))
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # the table of trials with columns of one's own
    os.environ.setdefault("TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S", "0")
    # What fails is told with its cause at the end, not as Tune's traceback in between.
    os.environ["TUNE_PRINT_ALL_TRIAL_ERRORS"] = "0"
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    rows = [
        row
        for row, record in zip(plan.rows, book.records, strict=True)
        if not record.is_finished and record.assignment
    ]
    more = None
    if config.searcher == "optuna":
        make = functools.partial(make_optuna, seed=derive_seed(config.seed, "searcher"))
        more = Suggestions(plan, METRIC, book.records, make, book.add, book.refuse)
    search = TableSearch(
        rows, book.folder, METRIC, config.metric.mode, more, columns=tuple(config.parameters)
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
            num_samples=_num_trials(plan),
            max_concurrent_trials=config.max_concurrent,
            trial_name_creator=_trial_name,
            trial_dirname_creator=_trial_name,
        ),
        run_config=tune.RunConfig(
            name=f"tune-{datetime.now():%Y%m%d-%H%M%S}",
            storage_path=str(book.folder.path),
            callbacks=[book],
            checkpoint_config=tune.CheckpointConfig(
                checkpoint_at_end=False
            ),  # servers write theirs
            verbose=0 if console is None else 1,
            progress_reporter=_reporter(plan),
        ),
    )
    tuner.fit()


def _trial_name(trial: Any) -> str:
    return str(trial.config["trial"])


def _config_of(plan: SweepPlan, config: dict[str, Any]) -> Any:
    from muxrl.orchestrator.sweeps.trial import row_of

    return plan.config_of(row_of(config))


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
    """Tune's table; without the folders that go when Ray does, to which it would point."""

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
        # A file or CI log is not to be filled with tables.
        max_report_frequency=5 if sys.stdout.isatty() else 60,
        print_intermediate_tables=True,
    )


class Book(tune.Callback):
    """Keeps `trials.jsonl`.

    Args:
        folder: of the sweep.
        records: all trials as they stand.
    """

    def __init__(self, folder: SweepDirectory, records: list[TrialRecord]) -> None:
        self.folder = folder
        self.records = records
        self._by_id = {record.id: record for record in records}
        self._ending: list[TrialRecord] = []
        """Told to stop early, and still saving."""
        self._written_at = 0.0

    def add(self, rows: Sequence[Row]) -> None:
        """Takes in trials that a searcher has made."""
        for row in rows:
            self._by_id[row.trial_id] = _new_record(row)
            self.records.append(self._by_id[row.trial_id])
        self._write()

    def refuse(self, rows: Sequence[Row], cause: str) -> None:
        """Takes in trials that a searcher has made and that cannot be run."""
        self.add(rows)
        for row in rows:
            self._by_id[row.trial_id].status = "failed"
            self._by_id[row.trial_id].cause = cause
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

        When there is nothing left to run, Tune gives trials that it has stopped ten seconds more.
        """
        if not self._ending or not all(trial.is_finished() for trial in trials):
            return
        deadline = time.monotonic() + _CLEANUP_S
        while time.monotonic() < deadline and any(
            self.folder.outcome_of(record) is None for record in self._ending
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
        """Writes down the last state: what still ran was interrupted."""
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
        outcome = self.folder.outcome_of(record)
        if outcome is not None and outcome.cause:
            return outcome.cause
        log = self.folder.path / (record.run_dir or "") / "logs" / "trial.log"
        error = _error_of(trial)
        if isinstance(error, ray.exceptions.RayTaskError):
            return f"{type(error.cause).__name__}: {error.cause}; its log: {log}"
        return f"the trial's process died ({cause_of_death(error)}); its log: {log}"

    def _write(self) -> None:
        self._written_at = time.monotonic()
        self.folder.write_trials(self.records)


def _error_of(trial: Any) -> Exception:
    """Returns what Tune has noted of a trial's failure; it is not in its storage yet."""
    if trial.pickled_error_file is not None:
        with contextlib.suppress(OSError), open(trial.pickled_error_file, "rb") as file:
            return cloudpickle.load(file)
    return RuntimeError("Tune does not say why")
