"""Prepares and runs an experiment, for all commands that do so."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muxrl.orchestrator.commands.terminal import quiet

if TYPE_CHECKING:
    from muxrl.orchestrator.config import Experiment, ExperimentConfig
    from muxrl.orchestrator.records.run_directory import RunDirectory


def prepared(config: ExperimentConfig, *, needs_stop: bool, is_check: bool = False) -> Experiment:
    """Returns the resolved experiment, and keeps what libraries print off the terminal.

    Raises:
        ConfigError: the experiment cannot be run.
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
    """Runs an experiment or resumes a run, prints what went wrong, and returns the exit code."""
    from rich.console import Console

    from muxrl.orchestrator.launch.whole_run import run_experiment

    how: dict[str, Any] = {"show_progress": show_progress, "console": Console()}
    is_resumed = resumed is not None
    result = run_experiment(experiment, resumed or run_dir, is_resumed=is_resumed, **how)
    if result.problem:
        sys.stderr.write(f"muxrl: {result.problem}\n")
    return result.exit_code
