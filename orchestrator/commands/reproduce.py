"""``muxrl reproduce``: launch a recorded run again, and say which software differs.

Launches the config that a run was made with as a new run, and says first what of its software,
environment and source is another one here.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from muxrl.orchestrator.commands.experiment import run_prepared
from muxrl.orchestrator.commands.terminal import quiet
from muxrl.orchestrator.errors import ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the directory of a run")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="as for launch, such as a token"
    )
    parser.add_argument("--check", action="store_true", help="say what differs; start nothing")
    parser.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="where results go; default: a new one"
    )
    parser.add_argument("--no-progress", action="store_true", help="show no live display")


def run(args: argparse.Namespace) -> int:
    """Says what differs, launches the run, and returns the exit code."""
    from muxrl.orchestrator.config import prepare
    from muxrl.orchestrator.launch.resuming import changes_on_the_way, load_own_config
    from muxrl.orchestrator.records.run_directory import RunDirectory
    from muxrl.orchestrator.storage.versions import changes_since
    from muxrl.orchestrator.supervise.ray_session import begin_early

    folder = RunDirectory.open(args.run)
    config = load_own_config(folder, args.overrides)
    if not args.check:
        begin_early(config.address)
    with quiet():
        experiment = prepare(config)
    differing = [*changes_since(folder.path, config.simulation.env), *changes_on_the_way(folder)]
    for sentence in differing:
        sys.stdout.write(f"differs: {sentence}\n")
    if args.check:
        if not differing:
            sys.stdout.write(f"{args.run}: nothing that it names differs here\n")
        return ExitCode.FAILED if differing else ExitCode.DONE
    return run_prepared(experiment, args)
