"""A whole run: an experiment from its Ray to its report.

However it ends, by its stop conditions, by Ctrl-C, or because something died, shutdown is the same:
simulations first, then servers, then the report of what there is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from muxrl.orchestrator.config import Experiment, to_yaml
from muxrl.orchestrator.errors import ExitCode, RunFailed
from muxrl.orchestrator.records.checkpoints import Manifest
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.run_directory import RunDirectory, make_folder
from muxrl.orchestrator.records.run_status import EndState
from muxrl.orchestrator.reports.report import print_report, write_report
from muxrl.orchestrator.reports.results import Report
from muxrl.orchestrator.runs.placement import cpus_wanted, reserved
from muxrl.orchestrator.runs.progress import Progress
from muxrl.orchestrator.runs.ray_session import ray_session
from muxrl.orchestrator.runs.resuming import find_checkpoint, find_missing_replays, going_on, locked
from muxrl.orchestrator.runs.run import Run
from muxrl.orchestrator.runs.shared_folder import check_shared
from muxrl.orchestrator.runs.signals import claim_signals, ignore_signals, interruptible

if TYPE_CHECKING:
    from pandas import DataFrame

_EXIT_CODES: dict[EndState, int] = {
    "done": ExitCode.DONE,
    "failed": ExitCode.FAILED,
    "interrupted": ExitCode.INTERRUPTED,
}


@dataclass(frozen=True)
class RunResult:
    """How a run ended, and what it learned."""

    run_dir: Path
    outcome: EndState
    """"done": a stop condition was reached; "failed": something died, or could not be saved;
    "interrupted": Ctrl-C."""
    problem: str
    """Why it is not "done", in a sentence; "" if it is."""
    env_steps: int
    """Of training, over all environments."""
    time_s: float
    """From the first training step to the last."""
    report: Report | None = field(repr=False)
    """Who learned what; None if the run never began to play, or it cannot be written."""

    @property
    def exit_code(self) -> int:
        """Of the process that ran it: 0 done, 1 failed, 130 interrupted."""
        return _EXIT_CODES[self.outcome]

    def frame(self) -> DataFrame:
        """The run's evaluations, a row for each episode and agent; see `records.recorded_run`."""
        from muxrl.orchestrator.records.recorded_run import evaluation_frame

        return evaluation_frame([self.run_dir])


def run_experiment(
    experiment: Experiment,
    run_dir: Path | None = None,
    *,
    show_progress: bool = False,
    console: Console | None = None,
) -> RunResult:
    """Runs an experiment to its end, on a Ray of its own or the cluster it names, and reports.

    Ctrl-C, SIGTERM and SIGHUP end it cleanly; what was measured is kept.

    Args:
        experiment: resolved.
        run_dir: the run's directory, which must not exist yet; None makes one under the
            experiment's `runs_dir`.
        show_progress: whether to show the run's state while it goes on.
        console: where to write what is going on; None: nowhere.

    Raises:
        OSError: the run directory is there already, or cannot be made.
    """
    folder = make_folder(experiment, run_dir)
    with locked(folder):
        return _run(experiment, folder, None, show_progress, console)


def resume_experiment(
    experiment: Experiment,
    folder: RunDirectory,
    *,
    show_progress: bool = False,
    console: Console | None = None,
) -> RunResult:
    """Goes on with a run from its newest whole checkpoint, however it ended.

    Args:
        experiment: resolved from `load_resumed_config`.
        folder: the run's directory.
        show_progress: as for `run_experiment`.
        console: likewise.

    Raises:
        CannotResume: there is no whole checkpoint.
        RunIsRunning: another process watches over the run.
        OSError: the run directory cannot be written to.
    """
    say = console.print if console is not None else _say_nothing
    with locked(folder):
        place, manifest, damage = find_checkpoint(folder)
        for sentence in (
            *(f"a newer checkpoint cannot be used: {problem}" for problem in damage),
            f"resuming at {manifest.env_steps:,} env steps from {place}",
            *find_missing_replays(place, manifest),
        ):
            say(sentence, soft_wrap=True, highlight=False)
        folder.write_config(to_yaml(experiment.config))
        experiment = going_on(experiment, place, manifest)
        return _run(experiment, folder, manifest, show_progress, console)


def _run(
    experiment: Experiment,
    folder: RunDirectory,
    before: Manifest | None,
    show_progress: bool,
    console: Console | None,
) -> RunResult:
    say = console.print if console is not None else _say_nothing
    say(f"run directory: {folder.path}", soft_wrap=True, highlight=False)
    outcome: EndState = "done"
    problem = ""
    report = None
    with interruptible():
        with (
            MetricsWriter(folder, experiment.config.tensorboard) as metrics,
            contextlib.ExitStack() as cleanup,
        ):
            run = Run(experiment, folder, metrics, before)
            try:
                try:
                    scheduling = cleanup.enter_context(_ray(experiment, folder, say))
                    _play(run, scheduling, say, show_progress)
                finally:
                    ignore_signals()
            except KeyboardInterrupt:
                outcome, problem = "interrupted", "interrupted; what was measured is kept"
            except (RunFailed, OSError) as error:  # OSError: of the run directory's files
                outcome, problem = "failed", str(error)
            except Exception as error:
                run.status.enter("failed", run.tally.env_steps, f"{type(error).__name__}: {error}")
                raise
            finally:
                unsaved = run.stop()
                cleanup.close()
        # A failed run reports its cause, not the consequences.
        if unsaved and outcome != "failed":
            outcome = "failed" if outcome == "done" else outcome
            problem = "; ".join(filter(None, [problem, *unsaved]))
        run.status.enter(outcome, run.tally.env_steps, problem)  # the report says so, too
        if run.has_started:
            try:
                report = write_report(folder)
            except OSError as error:
                outcome = "failed" if outcome == "done" else outcome
                problem = "; ".join(filter(None, [problem, f"the report is not whole: {error}"]))
                run.status.enter(outcome, run.tally.env_steps, problem)
        if report is not None and console is not None:
            print_report(report, console)
        say(f"run directory: {folder.path}", soft_wrap=True, highlight=False)
    return RunResult(folder.path, outcome, problem, run.tally.env_steps, run.tally.time_s, report)


def _play(run: Run, scheduling: Any, say: Callable[..., None], show_progress: bool) -> None:
    """Has a run start, learn until it is done, and be evaluated.

    Raises:
        RunFailed: something died or gave up.
    """
    run.start(scheduling)
    say(f"servers: {run.addresses_text}", soft_wrap=True, highlight=False)
    with contextlib.ExitStack() as display:
        progress = None
        if show_progress:
            first = run.snapshot()
            progress = display.enter_context(
                Progress(run.config.name, first.servers, first.stop_text)
            )
        run.begin()
        while not run.watch():
            if progress is not None:
                progress.update(run.snapshot())
        if progress is not None:
            progress.update(run.snapshot())
    if show_progress and run.has_final_evaluation:
        say("evaluating: each server against random agents in its place")
    run.finish()


def _say_nothing(*_: Any, **__: Any) -> None:
    pass


@contextlib.contextmanager
def _ray(experiment: Experiment, folder: RunDirectory, say: Callable[..., None]) -> Iterator[Any]:
    """Ray while the ``with`` block lasts, with room for the run.

    Yields:
        The scheduling strategy of the run's actors.

    Raises:
        RunFailed: Ray did not start, has no room, or has it where the run's directory is not seen.
    """
    config = experiment.config
    num_cpus = max(os.cpu_count() or 1, int(sum(cpus_wanted(config))) + 1)
    with ray_session(num_cpus, config.address) as local_folder:
        claim_signals()  # which Ray has taken; a place may be long in coming
        if local_folder is not None:  # a Ray of the run's own has room
            yield None
            return
        with reserved(config, say) as scheduling:
            check_shared(folder.path, scheduling)
            yield scheduling
