"""A whole run: an experiment from its Ray to its report.

However it ends, by its stop conditions, by Ctrl-C, or because something died, the way out is the
same: simulations first, then servers, then the report of what there is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from muxrl.orchestrator import exit_codes
from muxrl.orchestrator.config import Experiment
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.new_run import make_folder
from muxrl.orchestrator.reports.report import write_report
from muxrl.orchestrator.reports.results import Report
from muxrl.orchestrator.reports.terminal import print_report
from muxrl.orchestrator.runs.failures import RunFailed
from muxrl.orchestrator.runs.local_ray import join_ray, start_local_ray, stop_local_ray
from muxrl.orchestrator.runs.placement import NoPlace, cpus_wanted, reserved
from muxrl.orchestrator.runs.progress import Progress
from muxrl.orchestrator.runs.run import Run
from muxrl.orchestrator.runs.signals import claim_signals, ignore_signals, interruptible

if TYPE_CHECKING:
    from pandas import DataFrame

Outcome = Literal["done", "failed", "interrupted"]
_EXIT_CODES: dict[Outcome, int] = {
    "done": exit_codes.DONE,
    "failed": exit_codes.FAILED,
    "interrupted": exit_codes.INTERRUPTED,
}


@dataclass(frozen=True)
class RunResult:
    """What came of a run."""

    run_dir: Path
    outcome: Outcome
    """"done": a stop condition was reached; "failed": something died, or could not be saved;
    "interrupted": Ctrl-C."""
    problem: str
    """Why it is not done, in a sentence; "" if it is."""
    env_steps: int
    """Of training, over all environments."""
    time_s: float
    """From the first training step to the last."""
    report: Report | None = field(repr=False)
    """Who learned what; None if the run never got to play."""

    @property
    def exit_code(self) -> int:
        """Of the process that ran it: 0 done, 1 failed, 130 interrupted."""
        return _EXIT_CODES[self.outcome]

    def frame(self) -> DataFrame:
        """The run's evaluations, a row for each episode and agent; see `muxrl.orchestrator.records.frames`."""
        from muxrl.orchestrator.records.frames import evaluation_frame

        return evaluation_frame([self.run_dir])


def run_experiment(
    experiment: Experiment,
    run_dir: Path | None = None,
    *,
    show_progress: bool = False,
    console: Console | None = None,
) -> RunResult:
    """Runs an experiment to its end, on a Ray of its own or the cluster it names, and reports.

    Ctrl-C and SIGTERM end it cleanly; what was measured is kept.

    Args:
        experiment: resolved; nothing about it is wrong any more.
        run_dir: the run's directory, which must not exist yet; None makes one under the
            experiment's `runs_dir`.
        show_progress: whether to show the run's state while it goes on.
        console: where to say what is going on; None says nothing.

    Raises:
        OSError: the run directory is there already, or cannot be made.
    """
    folder = make_folder(experiment, run_dir)
    say = console.print if console is not None else _say_nothing
    say(f"run directory: {folder.path}", soft_wrap=True, highlight=False)
    outcome: Outcome = "done"
    problem = ""
    report = None
    with interruptible():
        with (
            MetricsWriter(folder, experiment.config.tensorboard) as metrics,
            contextlib.ExitStack() as ray_session,
        ):
            run = Run(experiment, folder, metrics)
            try:
                try:
                    scheduling = ray_session.enter_context(_ray(experiment, say))
                    claim_signals()
                    _play(run, scheduling, say, show_progress)
                finally:
                    ignore_signals()
            except KeyboardInterrupt:
                outcome, problem = "interrupted", "interrupted; what was measured is kept"
            except RunFailed as error:
                outcome, problem = "failed", str(error)
            finally:
                unsaved = run.stop()
                ray_session.close()
        # Of a run that has failed, its cause is told, not the consequences.
        if unsaved and outcome != "failed":
            outcome = "failed" if outcome == "done" else outcome
            problem = "; ".join(filter(None, [problem, *unsaved]))
        if run.has_started:
            report = write_report(folder)
            if console is not None:
                print_report(report, console)
        say(f"run directory: {folder.path}", soft_wrap=True, highlight=False)
    return RunResult(folder.path, outcome, problem, run.tally.env_steps, run.tally.time_s, report)


def _play(run: Run, scheduling: Any, say: Callable[..., None], show_progress: bool) -> None:
    """Has a run start, learn until it is done, and be evaluated.

    Raises:
        RunFailed: something died or gave up.
    """
    run.start(scheduling)
    say(f"servers: {run.where}", soft_wrap=True, highlight=False)
    with contextlib.ExitStack() as display:
        progress = None
        if show_progress:
            progress = display.enter_context(Progress(run.config.name, run.rows(), run.stop_text))
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
def _ray(experiment: Experiment, say: Callable[[str], None]) -> Iterator[Any]:
    """The cluster that the experiment names, or a local Ray, while the ``with`` block lasts.

    One that this process is connected to already is used, and left alone.

    Yields:
        The scheduling strategy of the run's actors.

    Raises:
        RunFailed: it did not start, or has no room.
    """
    import ray

    if ray.is_initialized():
        with _places(experiment, say) as scheduling:
            yield scheduling
        return
    address = experiment.config.address
    if address:
        try:
            join_ray(address)
        except Exception as error:  # Ray may raise anything
            raise RunFailed(
                f"no Ray cluster at {address!r} to join: {type(error).__name__}: {error}"
            ) from error
        claim_signals()  # which Ray has taken; a place may be long in coming
        try:
            with _places(experiment, say) as scheduling:
                yield scheduling
        finally:
            ray.shutdown()
        return
    # On one machine nobody waits for a place.
    num_cpus = max(os.cpu_count() or 1, int(sum(cpus_wanted(experiment.config))) + 1)
    try:
        folder = start_local_ray(num_cpus)
    except Exception as error:  # likewise
        raise RunFailed(f"Ray did not start: {type(error).__name__}: {error}") from error
    try:
        yield None
    finally:
        stop_local_ray(folder)


@contextlib.contextmanager
def _places(experiment: Experiment, say: Callable[[str], None]) -> Iterator[Any]:
    """`placement.reserved`, for a Ray that others may use, too."""
    try:
        with reserved(experiment.config, say) as scheduling:
            yield scheduling
    except NoPlace as error:
        raise RunFailed(str(error)) from error
