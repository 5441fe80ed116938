"""Runs an experiment, from the start of its processes to its report.

However the run ends, by its stop conditions, by Ctrl-C, or because something died, the shutdown is
the same: first simulations end, then servers, and then a report is made of what there is.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from muxrl.orchestrator.config import Experiment
from muxrl.orchestrator.errors import ConfigError, RunFailed
from muxrl.orchestrator.launch.progress import Progress
from muxrl.orchestrator.launch.result import RunResult
from muxrl.orchestrator.launch.resuming import (
    how_to_resume,
    locked,
    resume_at_checkpoint,
    write_resumed_config,
)
from muxrl.orchestrator.launch.run import Run
from muxrl.orchestrator.records.run_directory import RunDirectory, make_folder
from muxrl.orchestrator.records.run_status import EndState
from muxrl.orchestrator.storage.checkpoints import Manifest
from muxrl.orchestrator.supervise import fork_server
from muxrl.orchestrator.supervise.gpus import check_gpus
from muxrl.orchestrator.supervise.local import Workers, workers_for
from muxrl.orchestrator.supervise.page_process import page_of
from muxrl.orchestrator.supervise.ray_session import ray_session
from muxrl.orchestrator.supervise.signals import claim_signals, ignore_signals, interruptible

logger = logging.getLogger(__name__)


def run_experiment(
    experiment: Experiment,
    run_dir: Path | RunDirectory | None = None,
    *,
    is_resumed: bool = False,
    show_progress: bool = False,
    console: Console | None = None,
    hidden_metrics: str = "",
) -> RunResult:
    """Runs an experiment to its end, on this machine or the cluster it names, and reports.

    Ctrl-C, SIGTERM and SIGHUP end it cleanly; what was measured is kept.

    Args:
        experiment: the resolved experiment; to resume a run, resolved from the config that
            `load_resumed_config` returns.
        run_dir: the run's directory, which must not exist yet, or which `make_folder` has made;
            None: one is made in the experiment's `runs_dir`.
        is_resumed: whether to continue the run in `run_dir` from its newest whole checkpoint,
            however it ended.
        show_progress: whether to show the run's state while it runs.
        console: the console for progress and the report; None: nothing is written.
        hidden_metrics: prefix of the names of metrics that the console does not show; "": none.

    Raises:
        ConfigError: a server wants a GPU that is not there, or has `replace_by` in a new run.
        CannotResume: there is no whole checkpoint.
        RunIsRunning: another process watches over the run.
        OSError: the run directory is there already, or cannot be made or written to.
    """
    check_gpus(experiment.config)
    replaced = [s for s, server in experiment.config.servers.items() if server.replace_by]
    if replaced and not is_resumed:
        why = "is only for a resumed run: in a new run the shadow has learned nothing yet"
        raise ConfigError([f"servers.{server_id}.replace_by: {why}" for server_id in replaced])
    folder = run_dir if isinstance(run_dir, RunDirectory) else make_folder(experiment, run_dir)
    before = None
    with locked(folder):
        if is_resumed:
            say = printer(console)
            experiment, before = resume_at_checkpoint(experiment, folder, say)
            write_resumed_config(folder, experiment.config, before.env_steps)
            for key, value in folder.changed_settings().items():
                say(f"{key} was {value}")
            folder.note_promoted(experiment)
        return _run(experiment, folder, before, show_progress, console, hidden_metrics)


def _run(
    experiment: Experiment,
    folder: RunDirectory,
    before: Manifest | None,
    show_progress: bool,
    console: Console | None,
    hidden_metrics: str,
) -> RunResult:
    say = printer(console)
    say(f"run directory: {folder.path}")
    outcome: EndState = "done"
    problem = ""
    with (
        interruptible(),
        page_of(folder.path, experiment.config.watch, say),
        contextlib.closing(Run(experiment, folder, before, on_warned=warner(console))) as run,
    ):
        with contextlib.ExitStack() as cleanup:
            try:
                try:
                    workers = cleanup.enter_context(_workers(experiment, folder, say))
                    _play(run, workers, console, show_progress)
                    problem = run.not_evaluated
                finally:
                    ignore_signals()
            except KeyboardInterrupt:
                outcome, problem = "interrupted", "all measurements are kept"
                say(f"interrupted: {_ending(run)}")
            except (RunFailed, OSError) as error:  # OSError: the run directory cannot be written to
                outcome, problem = "failed", str(error)
                say(f"failed: {problem}")
            except Exception as error:
                run.status.enter("failed", run.tally.env_steps, f"{type(error).__name__}: {error}")
                raise
            finally:
                run.stop(is_meant=outcome == "interrupted")
        result = run.end(outcome, problem, how_to_resume)
        if result.report is not None and console is not None:
            from muxrl.orchestrator.reports.report import print_report

            print_report(result.report, console, hidden_metrics)
        if run.stopped_by:
            ended = f"training ended after {result.env_steps:,} env steps"
            say(f"{ended}, by stop: {run.stopped_by}")
        if result.outcome == "interrupted" and run.has_started:
            say(how_to_resume(folder, ""))
        say(f"run directory: {folder.path}")
    return result


def printer(console: Console | None) -> Callable[..., None]:
    """Returns a function that prints a line without wrapping it; without a console, it is mute."""
    where = console or Console(quiet=True)
    return functools.partial(where.print, soft_wrap=True, highlight=False, markup=False)


def warner(console: Console | None) -> Callable[[str], None]:
    """Returns a function that shows a warning: on the console, or in the log if there is none."""
    if console is None:
        return logger.warning
    return lambda sentence: printer(console)(f"warning: {sentence}")


def _ending(run: Run) -> str:
    """Returns what an interrupted run does next, as text."""
    if not run.has_started:
        return "ending its processes; nothing has been learned yet"
    if run.config.checkpoint.at_end:
        return "saving a last checkpoint, then writing the report"
    return "ending its processes, then writing the report"


def _play(run: Run, workers: Workers, console: Console | None, show_progress: bool) -> None:
    """Plays a run to its end: start, training and evaluation.

    Raises:
        RunFailed: the run has failed; see `Run.play`.
    """
    rounds = run.play(workers)
    next(rounds)
    printer(console)(f"servers: {run.addresses_text}")
    if console is None or not show_progress:
        for _ in rounds:
            pass
        return
    # On the same console, so that what is printed meanwhile stands above the display.
    with Progress(run.config.name, run.snapshot(), console=console) as progress:
        for _ in rounds:
            progress.update(run.snapshot())
        progress.update(run.snapshot())


@contextlib.contextmanager
def _workers(
    experiment: Experiment, folder: RunDirectory, say: Callable[..., None]
) -> Iterator[Workers]:
    """Yields what starts the run's processes: on this machine, or on a Ray cluster.

    Raises:
        RunFailed: there is no such cluster, it has no room, or has room only on machines that do
            not see the run's directory.
    """
    config = experiment.config
    if not config.address:
        with fork_server.running():
            yield workers_for(config)
        return
    from muxrl.orchestrator.supervise.cluster import ClusterWorkers
    from muxrl.orchestrator.supervise.placement import reserved
    from muxrl.orchestrator.supervise.shared_folder import check_shared

    with ray_session(address=config.address):
        claim_signals()  # Ray has replaced their handlers; the wait for room may be long
        with reserved(config, say) as scheduling:
            # Recorded episodes, and checkpoints that pools read, are not sent between machines.
            if config.simulation.record or experiment.pool_sources:
                check_shared(folder.path, scheduling)
            yield ClusterWorkers(config, scheduling)
