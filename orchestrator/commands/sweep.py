"""``muxrl sweep``: run a table of trials: assignments, settings and seeds, on Ray Tune.

Runs every trial of a sweep as a run with its own directory, on Ray Tune.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from muxrl.orchestrator.commands.command import command
from muxrl.orchestrator.commands.terminal import quiet, table_console
from muxrl.orchestrator.errors import ConfigError, ExitCode


@command(
    is_long=True,
    says="always",
    needs=("servers", "tune"),
    at_most_one=("dry_run", "resume"),
)
def sweep(
    config: str,
    overrides: Sequence[str] = (),
    *,
    sweep_dir: Path | None = None,
    address: str | None = None,
    dry_run: bool = False,
    resume: bool = False,
) -> int:
    """Shows, runs or resumes the sweep and returns the exit code.

    Args:
        config (SWEEP): a YAML file, or the name of a packaged sweep; with --resume a sweep's
            directory.
        overrides (key=value): replaces a value of the sweep, such as seeds=[0,1] or
            experiment.stop.env_steps=9000.
        sweep_dir (DIR): directory for the results; default: a new one.
        address: Ray cluster to join, such as "auto".
        dry_run: show the trials and how long they would take.
        resume: continue a sweep: finished trials are kept; you may add seeds and samples.
    """
    if resume and sweep_dir is not None:
        raise ConfigError(["--sweep-dir is for a new sweep; with --resume, SWEEP is the directory"])
    with quiet():
        from muxrl.orchestrator.supervise.fork_server import early
        from muxrl.orchestrator.supervise.signals import uninterrupted
        from muxrl.orchestrator.sweeps.dry_run import dry_run as show_trials
        from muxrl.orchestrator.sweeps.load import load_sweep
        from muxrl.orchestrator.sweeps.result import print_result
        from muxrl.orchestrator.sweeps.runner import resume_sweep, start_sweep

    overrides = [*overrides, *([f"address={address}"] if address else [])]
    console = table_console()
    if dry_run:
        show_trials(config, overrides, console)
        return ExitCode.DONE
    if resume:
        result = resume_sweep(Path(config), overrides, console=console)
    else:
        loaded = load_sweep(config, overrides)
        with early(loaded.address):
            result = start_sweep(loaded, sweep_dir, console=console)
    lines = [f"sweep directory: {result.sweep_dir}"]
    if any(not trial.is_finished for trial in result.trials):
        lines.append(f"continue with: muxrl sweep {result.sweep_dir} --resume")
    with uninterrupted():
        print_result(result, console)
        for line in lines:
            console.print(line, soft_wrap=True, highlight=False)
    return result.exit_code
