"""What the command `muxrl` does, as functions: exported by `orchestrator` itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.config import ExperimentConfig, load_config, prepare
from orchestrator.run import RunResult, run_experiment


def launch(
    config: str | Path | ExperimentConfig,
    overrides: Sequence[str] = (),
    *,
    run_dir: str | Path | None = None,
    show_progress: bool = False,
) -> RunResult:
    """Runs an experiment to its end: servers and simulations in processes of their own.

    Ctrl-C (a notebook's stop button) ends it cleanly, too: the result then says "interrupted".

    Args:
        config: a YAML file, the name of a packaged config, or the experiment itself.
        overrides: ``key.path=value`` items on top of a file, later ones win.
        run_dir: the run's directory, which must not exist yet; None makes one under the
            experiment's `runs_dir`.
        show_progress: whether to print what `muxrl launch` prints, live table and report.

    Raises:
        ConfigError: with all that is wrong with the config, before anything is started.
        OSError: the run directory is there already, or cannot be made.
    """
    if not isinstance(config, ExperimentConfig):
        config = load_config(config, overrides)
    elif overrides:
        raise TypeError("overrides go on top of a file; change the ExperimentConfig instead")
    from rich.console import Console

    return run_experiment(
        prepare(config),
        None if run_dir is None else Path(run_dir),
        show_progress=show_progress,
        console=Console() if show_progress else None,
    )
