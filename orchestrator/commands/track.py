"""``muxrl track``: tell trackers of a finished run or sweep, from its files.

Tells trackers all that a finished run has recorded, and hands them its report. Each trial of a
sweep is a run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from muxrl.orchestrator.errors import ConfigError, ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "run", type=Path, metavar="RUN|SWEEP", help="directory of a run or a sweep that is over"
    )
    parser.add_argument(
        "trackers",
        nargs="+",
        metavar="TRACKER",
        help="wandb, mlflow, tensorboard, or your own as package.module:Tracker",
    )


def run(args: argparse.Namespace) -> int:
    """Tells one tracker after another, and returns the exit code."""
    from muxrl.orchestrator.config.trackers import find_problems
    from muxrl.orchestrator.manage.replay import replay, runs_in

    if problems := list(find_problems(args.trackers)):
        raise ConfigError(problems)
    for folder in runs_in(args.run):
        for name in args.trackers:
            num_rows, known_as = replay(folder, name)
            as_what = f" as {known_as}" if known_as else ""
            sys.stdout.write(f"{name}: {num_rows:,} rows of {folder.path}{as_what}\n")
            sys.stdout.flush()
    return ExitCode.DONE
