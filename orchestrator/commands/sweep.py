"""``muxrl sweep``: run a table of trials: assignments, settings and seeds, on Ray Tune.

Runs every trial of a sweep as a launch of its own, on Ray Tune.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from muxrl.orchestrator.commands.terminal import quiet, table_console
from muxrl.orchestrator.errors import ConfigError, ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "config",
        metavar="SWEEP",
        help="a YAML file, or the name of a packaged sweep; with --resume a sweep's directory",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="replaces a value of the sweep, such as seeds=[0,1] or experiment.stop.env_steps=9000",
    )
    parser.add_argument(
        "--sweep-dir", type=Path, metavar="DIR", help="where results go; default: a new one"
    )
    parser.add_argument("--address", help='Ray cluster to join, such as "auto"')
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--dry-run", action="store_true", help="show the trials and how long they would take"
    )
    how.add_argument(
        "--resume",
        action="store_true",
        help="go on with a sweep: finished trials are kept; seeds and samples may be more",
    )


def run(args: argparse.Namespace) -> int:
    """Shows, runs or resumes the sweep and returns the exit code."""
    if args.resume and args.sweep_dir is not None:
        raise ConfigError(["--sweep-dir: is not for --resume; SWEEP is the directory"])
    with quiet():
        from muxrl.orchestrator.supervise.ray_session import begin_early
        from muxrl.orchestrator.supervise.signals import uninterrupted
        from muxrl.orchestrator.sweeps.dry_run import dry_run
        from muxrl.orchestrator.sweeps.load import load_sweep
        from muxrl.orchestrator.sweeps.result import print_result
        from muxrl.orchestrator.sweeps.runner import resume_sweep, start_sweep

    overrides = list(args.overrides)
    if args.address:
        overrides.append(f"address={args.address}")
    console = table_console()
    if args.dry_run:
        dry_run(args.config, overrides, console)
        return ExitCode.DONE
    if args.resume:
        result = resume_sweep(Path(args.config), overrides, console=console)
    else:
        config = load_sweep(args.config, overrides)
        begin_early(config.address)
        result = start_sweep(config, args.sweep_dir, console=console)
    lines = [f"sweep directory: {result.sweep_dir}"]
    if any(not trial.is_finished for trial in result.trials):
        lines.append(f"go on with: muxrl sweep {result.sweep_dir} --resume")
    with uninterrupted():
        print_result(result, console)
        for line in lines:
            console.print(line, soft_wrap=True, highlight=False)
    return result.exit_code
