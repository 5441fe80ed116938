"""What commands that run an experiment share: to prepare it, and to run it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muxrl.orchestrator.commands.terminal import quiet

if TYPE_CHECKING:
    from muxrl.orchestrator.config import Experiment, ExperimentConfig
    from muxrl.orchestrator.records.run_directory import RunDirectory


def prepared(config: ExperimentConfig, *, needs_stop: bool, is_check: bool = False) -> Experiment:
    """Returns the experiment; what libraries print meanwhile is kept off the terminal.

    Raises:
        ConfigError: it cannot be run.
    """
    from muxrl.orchestrator.config import prepare

    with quiet():
        return prepare(config, needs_stop=needs_stop, plays_episode=is_check)


def run_prepared(
    experiment: Experiment,
    run_dir: Path | None,
    resumed: RunDirectory | None = None,
    *,
    show_progress: bool,
) -> int:
    """Runs an experiment or goes on with a run, says what went wrong, returns the exit code."""
    from rich.console import Console

    from muxrl.orchestrator.launch.whole_run import run_experiment

    how: dict[str, Any] = {"show_progress": show_progress, "console": Console()}
    is_resumed = resumed is not None
    result = run_experiment(experiment, resumed or run_dir, is_resumed=is_resumed, **how)
    if result.problem:
        sys.stderr.write(f"muxrl: {result.problem}\n")
    return result.exit_code
