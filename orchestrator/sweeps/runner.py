"""Runs a sweep on Ray Tune from its plan to its end, and resumes it.

A trial that fails does not end the sweep.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import ray
from rich.console import Console

from muxrl.orchestrator.config import to_yaml
from muxrl.orchestrator.config.overrides import Overrides
from muxrl.orchestrator.errors import CannotResume, ConfigError
from muxrl.orchestrator.launch.resuming import find_checkpoint
from muxrl.orchestrator.launch.whole_run import warner
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.storage.json_files import write_text
from muxrl.orchestrator.storage.process import Process
from muxrl.orchestrator.supervise import fork_server
from muxrl.orchestrator.supervise.page_process import page_of
from muxrl.orchestrator.supervise.placement import beyond_every_machine, cpus_wanted, strategy
from muxrl.orchestrator.supervise.process import worker_environment
from muxrl.orchestrator.supervise.ray_session import ray_session
from muxrl.orchestrator.supervise.shared_folder import check_shared
from muxrl.orchestrator.supervise.signals import (
    are_signals_claimed,
    claim_signals,
    ignore_signals,
    interruptible,
)
from muxrl.orchestrator.sweeps.checks import find_comparison_problems
from muxrl.orchestrator.sweeps.directory import SweepDirectory, TrialRecord
from muxrl.orchestrator.sweeps.load import load_resumed
from muxrl.orchestrator.sweeps.plan import SweepPlan, find_trial_warnings, keep_trials, make_plan
from muxrl.orchestrator.sweeps.progress import SweepProgress
from muxrl.orchestrator.sweeps.result import SweepResult
from muxrl.orchestrator.sweeps.schema import SweepConfig
from muxrl.orchestrator.sweeps.trial_log import TrialLog
from muxrl.orchestrator.sweeps.tuner import run_trials


def start_sweep(
    config: SweepConfig, sweep_dir: Path | None = None, *, console: Console | None = None
) -> SweepResult:
    """Runs all trials of a sweep.

    Ctrl-C, SIGTERM and SIGHUP end the sweep cleanly: finished trials are kept, and `resume_sweep`
    continues the others.

    Args:
        config: the sweep.
        sweep_dir: the sweep's directory, which must not exist yet; None makes one under
            `sweeps_dir`.
        console: shows progress; None: nothing is shown.

    Raises:
        ConfigError: with all problems of the sweep and its trials; nothing was started.
        RunFailed: Ray did not start, or a machine of its cluster does not see the directory.
        OSError: the directory exists already, or cannot be made.
    """
    plan = make_plan(config)
    path = sweep_dir and sweep_dir.resolve()
    folder = SweepDirectory.make(path, Path(config.sweeps_dir).resolve(), config.name)
    write_text(folder.config_file, to_yaml(config))
    with folder.locked():
        folder.write_trials(plan.trials)
        return _run(plan, folder, console)


def resume_sweep(
    sweep_dir: Path, overrides: Overrides = (), *, console: Console | None = None
) -> SweepResult:
    """Continues a sweep: finished trials are kept, all others continue or begin again.

    Args:
        sweep_dir: the sweep's directory.
        overrides: more seeds or samples, a larger budget, and keys that leave the trials as they
            are.
        console: shows progress; None: nothing is shown.

    Raises:
        NotASweepDirectory: the folder is not a sweep's.
        SweepIsRunning: another process runs the sweep.
        ConfigError: the sweep cannot run any more, for example since its simulation has changed.
        RunFailed: as for `start_sweep`.
    """
    folder = SweepDirectory.open(sweep_dir)
    # Locked before anything is read: a process that runs the sweep may be finishing trials.
    with folder.locked():
        plan = make_plan(load_resumed(folder.config_file, overrides))
        keep_trials(plan, folder.trials())
        plan.trials = [_resumed(trial, folder, plan) for trial in plan.trials]
        write_text(folder.config_file, to_yaml(plan.config))
        return _run(plan, folder, console)


def _resumed(record: TrialRecord, folder: SweepDirectory, plan: SweepPlan) -> TrialRecord:
    """Returns the record of a trial in a resumed sweep.

    A trial that was stopped early is over, and so is a trial that is done, unless the sweep has a
    larger budget now. Any other continues from its checkpoint if its run directory has a complete
    one, and begins again if not.
    """
    # An experiment that was refused would be refused again.
    if record.status == "stopped_early" or not record.assignment:
        return record
    if record.status == "done" and _has_its_budget(record, folder, plan):
        return record
    if run_dir := folder.run_of(record):
        with contextlib.suppress(CannotResume):
            find_checkpoint(RunDirectory(run_dir))
            return replace(record, status="waiting", cause="")  # keeps what the trial has reached
    return TrialRecord(record.id, record.assignment, record.roles, record.parameters, record.seed)


def _has_its_budget(record: TrialRecord, folder: SweepDirectory, plan: SweepPlan) -> bool:
    """Whether a trial that is done had the same stop conditions that it would have now."""
    try:
        played = RunDirectory(folder.run_of(record) or folder.path).read_config()
    except (OSError, ConfigError):  # the run was deleted, or written by another version
        return True
    return played.stop == plan.config_of(record).stop


def _run(plan: SweepPlan, folder: SweepDirectory, console: Console | None) -> SweepResult:
    say = (console or Console(quiet=True)).print
    num_kept = sum(trial.is_finished for trial in plan.trials)
    total = plan.num_trials
    num_begun = sum(trial.run_dir is not None and not trial.is_finished for trial in plan.trials)
    kept = f", {num_kept} of them finished before" if num_kept else ""
    begun = f", {num_begun} continue from a checkpoint" if num_begun else ""
    say(f"sweep directory: {folder.path}", soft_wrap=True, highlight=False)
    say(f"{total} trials{kept}{begun}", highlight=False)
    trial_log = TrialLog(folder, plan.trials)
    if num_kept == total:
        trial_log.close()
        return SweepResult(folder.path, tuple(trial_log.records), plan.config)
    for sentence in (*find_comparison_problems(plan.config), *find_trial_warnings(plan)):
        warner(console)(sentence)
    is_interrupted = False
    is_watched = plan.config.experiment.watch
    with (
        interruptible(),
        page_of(folder.path, is_watched, say),
        contextlib.ExitStack() as cleanup,
    ):
        try:
            try:
                folder.write_owner(Process.here(ends_on_sigterm=are_signals_claimed()))
                cleanup.enter_context(sweep_ray(plan))
                claim_signals()
                check_shared(folder.path)
                for note in placement_notes(plan):
                    say(note, soft_wrap=True, highlight=False)
                if console is not None:
                    shown = SweepProgress(
                        folder.path.name, plan.config.metric.title, plan.trials, total, console
                    )
                    trial_log.on_news = cleanup.enter_context(shown).update
                run_trials(plan, trial_log)
            finally:
                ignore_signals()
        except KeyboardInterrupt:
            is_interrupted = True
        finally:
            trial_log.close()
            cleanup.close()
    # SIGUSR1 ends Tune without an exception.
    is_interrupted |= any(not record.is_over for record in trial_log.records)
    return SweepResult(folder.path, tuple(trial_log.records), plan.config, is_interrupted)


@contextlib.contextmanager
def sweep_ray(plan: SweepPlan) -> Iterator[None]:
    """A `ray_session` with room for the trials of a sweep, or on the cluster that it names."""
    # Trials must resolve relative paths as this process does.
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    environment = {**worker_environment(), "RAY_CHDIR_TO_TRIAL_DIR": "0"}
    with contextlib.ExitStack() as stack:
        if not plan.config.address:
            stack.enter_context(fork_server.running())  # for the servers of all trials
        stack.enter_context(ray_session(local_num_cpus(plan), plan.config.address, environment))
        yield


def local_num_cpus(plan: SweepPlan) -> int:
    """Returns the logical CPUs of a local Ray: the machine's, or more if the trials need more."""
    wanted = max(sum(cpus_wanted(one.config)) for one in plan.resolved)
    return max(os.cpu_count() or 1, math.ceil(wanted * (plan.config.max_concurrent or 1)))


def placement_notes(plan: SweepPlan) -> Iterator[str]:
    """Yields a note if trials may wait for ever; a cluster that grows can still make room."""
    known = [trial for trial in plan.trials if trial.assignment]
    if not plan.config.address or not known:
        return
    for trial in known:
        if too_large := beyond_every_machine(plan.config_of(trial)):
            yield (
                f"note: trial {trial.id}: {too_large}; the trial waits until there is such a "
                "machine, which only a cluster that grows by itself can add"
            )
            return
    trial = max(known, key=lambda each: sum(cpus_wanted(plan.config_of(each))))
    config = plan.config_of(trial)
    num_cpus = sum(cpus_wanted(config))
    largest = max(node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"])
    if num_cpus > largest and strategy(config) == "STRICT_PACK":
        yield (
            f"note: trial {trial.id} takes {num_cpus:g} CPUs on one machine, since its "
            f"servers listen on the loopback address, and the largest machine has {largest:g}; the "
            "trial waits until there is a larger one"
        )
