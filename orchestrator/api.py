"""The commands `muxrl launch` and `muxrl sweep` as functions, which `muxrl` itself exports."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from muxrl.orchestrator.config import ConfigSource, Overrides, load_config, prepare
from muxrl.orchestrator.doing import shown_on
from muxrl.orchestrator.launch.background import BackgroundRun, start_resumed, start_run
from muxrl.orchestrator.launch.lasting_output import lasting_output
from muxrl.orchestrator.launch.result import RunResult
from muxrl.orchestrator.launch.resuming import load_resumed_config, open_resumed
from muxrl.orchestrator.launch.whole_run import run_experiment
from muxrl.orchestrator.supervise.fork_server import early

if TYPE_CHECKING:
    from rich.console import Console

    from muxrl.orchestrator.sweeps.result import SweepResult
    from muxrl.orchestrator.sweeps.schema import SweepConfig


@overload
def launch(
    config: ConfigSource,
    overrides: Overrides = ...,
    *,
    run_dir: str | Path | None = ...,
    resume: bool = ...,
    show_progress: bool | None = ...,
    wait: Literal[True] = ...,
) -> RunResult: ...


@overload
def launch(
    config: ConfigSource,
    overrides: Overrides = ...,
    *,
    run_dir: str | Path | None = ...,
    resume: bool = ...,
    show_progress: bool | None = ...,
    wait: Literal[False],
) -> BackgroundRun: ...


def launch(
    config: ConfigSource,
    overrides: Overrides = (),
    *,
    run_dir: str | Path | None = None,
    resume: bool = False,
    show_progress: bool | None = None,
    wait: bool = True,
) -> RunResult | BackgroundRun:
    """Runs an experiment to its end, with servers and simulations in separate processes.

    Ctrl-C, or a notebook's stop button, ends the run cleanly; its result then says "interrupted".

    Args:
        config: a YAML file, the name of a packaged config, or its content: a nested mapping, or an
            `ExperimentConfig`. In these two, `simulation.env` and every other key that names code
            of yours may be the class or function itself, if other processes can import it. With
            `resume`, the directory of a run, or the URI of its copy.
        overrides: ``{"key.path": value}``, or ``["key.path=value"]``: values that replace those of
            the config. Later ones win, and an empty mapping clears the mapping below it.
        run_dir: the run's directory, which must not exist yet; None makes one under the
            experiment's `runs_dir`.
        resume: continues a run from its newest checkpoint, in whichever way it has ended.
        show_progress: whether to print a live table and the report, as `muxrl launch` does; None:
            only in a terminal and in a notebook.
        wait: False returns at once, with a `BackgroundRun` that tells how the run stands, stops it,
            and waits for its result. The run ends with this process at the latest.

    Raises:
        ConfigError: with all problems of the config; nothing was started.
        NotARunDirectory, CannotResume, RunIsRunning: the run cannot be resumed, or is running.
        OtherFormat: a newer muxrl wrote the run that is to be resumed.
        OSError: the run directory exists already, or cannot be made.
    """
    if resume and not isinstance(config, str | Path):
        raise TypeError("with resume, the first argument is the run's directory, not a config")
    if resume and run_dir is not None:
        raise TypeError("with resume, the first argument is the run's directory; omit run_dir")
    if show_progress and not wait:
        raise TypeError("show_progress needs wait=True; with wait=False, see BackgroundRun.status")
    folder = open_resumed(str(config)) if resume else None
    loaded = load_resumed_config(folder, overrides) if folder else load_config(config, overrides)
    new_dir = None if run_dir is None else Path(run_dir)
    if not wait:
        experiment = prepare(loaded)
        return start_run(experiment, new_dir) if folder is None else start_resumed(loaded, folder)
    with _shown(show_progress) as console, early(loaded.address):
        experiment = prepare(loaded)
        how: dict[str, Any] = {"show_progress": console is not None, "console": console}
        return run_experiment(experiment, folder or new_dir, is_resumed=resume, **how)


@contextlib.contextmanager
def _shown(show_progress: bool | None) -> Iterator[Console | None]:
    """Prints what happens while the ``with`` block lasts.

    Yields:
        The console on which to print; None: nothing is printed.
    """
    from rich.console import Console

    with lasting_output():
        console = Console()
        if show_progress is None:
            show_progress = sys.stdout.isatty() or console.is_jupyter
        if not show_progress:
            yield None
            return
        with shown_on(sys.stdout):
            yield console


def sweep(
    config: str | Path | Mapping[str, Any] | SweepConfig,
    overrides: Overrides = (),
    *,
    sweep_dir: str | Path | None = None,
    resume: bool = False,
    show_progress: bool | None = None,
) -> SweepResult:
    """Runs all trials of a sweep on Ray Tune, each as a separate run.

    A trial that fails does not end the sweep; the result names it. Ctrl-C ends the sweep cleanly.

    Args:
        config: a YAML file, the name of a packaged sweep, or its content, as for `launch`; with
            `resume`, the directory of a sweep.
        overrides: as for `launch`; keys of the experiment begin with `experiment.`. With `resume`,
            more seeds or samples, or a larger budget.
        sweep_dir: the sweep's directory, which must not exist yet; None makes one under its
            `sweeps_dir`.
        resume: continues a sweep: finished trials are kept; all others continue from their newest
            checkpoint, or begin again if they have none.
        show_progress: whether to print a table of trials, as `muxrl sweep` does; None: as for
            `launch`.

    Raises:
        ConfigError: with all problems of the sweep and its trials; none was started.
        NotASweepDirectory, SweepIsRunning: the sweep cannot be resumed, or is running.
        OtherFormat: a newer muxrl wrote the sweep that is to be resumed.
        RunFailed: Ray did not start.
        OSError: the directory exists already, or cannot be made.
    """
    from muxrl.orchestrator.sweeps.load import load_sweep
    from muxrl.orchestrator.sweeps.runner import resume_sweep, start_sweep

    with _shown(show_progress) as console:
        if resume:
            if sweep_dir is not None or not isinstance(config, str | Path):
                raise TypeError(
                    "with resume, the first argument is the sweep's directory; omit sweep_dir"
                )
            return resume_sweep(Path(config), overrides, console=console)
        loaded = load_sweep(config, overrides)
        return start_sweep(loaded, None if sweep_dir is None else Path(sweep_dir), console=console)
