"""``muxrl sweep``: a table of trials, shown, run, or gone on with."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from muxrl.orchestrator import exit_codes
from muxrl.orchestrator.commands.quiet import quiet


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its arguments."""
    parser = commands.add_parser(
        "sweep",
        help="run a table of trials: assignments, settings and seeds, on Ray Tune",
        description="Runs every trial of a sweep as a launch of its own, on Ray Tune.",
    )
    parser.set_defaults(execute=run)
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
        "--resume", action="store_true", help="go on with a sweep; finished trials are kept"
    )


def run(args: argparse.Namespace) -> int:
    """Does what was asked of the sweep and returns the exit code."""
    from rich.console import Console

    from muxrl.orchestrator.config import ConfigError

    with quiet(but_raise=(ConfigError,)):
        from muxrl.orchestrator.runs.failures import RunFailed
        from muxrl.orchestrator.sweeps.command import dry_run, resume, start
        from muxrl.orchestrator.sweeps.directory import NotASweepDirectory, SweepIsRunning

    overrides = list(args.overrides)
    if args.address:
        overrides.append(f"address={args.address}")
    # Into a pipe or file, lines are not wrapped at a terminal's 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        if args.resume:
            if args.sweep_dir is not None:
                raise ConfigError(["--sweep-dir: is not for --resume; SWEEP is the directory"])
            return resume(Path(args.config), overrides, console)
        if args.dry_run:
            return dry_run(args.config, overrides, console)
        return start(args.config, overrides, args.sweep_dir, console)
    except (NotASweepDirectory, RunFailed, SweepIsRunning, OSError) as error:
        return exit_codes.say_why(error, refused=(NotASweepDirectory, FileExistsError))
