"""``muxrl logs``: show or follow the logs of a run's processes.

Shows the log of a process of a run, or the last lines of all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from muxrl.orchestrator.errors import ExitCode

_LINES_OF_EACH = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's directory")
    parser.add_argument(
        "processes",
        nargs="*",
        metavar="PROCESS",
        help="a server's id, simulation-0, evaluation, ...; default: all",
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on until the run ends, or Ctrl-C"
    )
    parser.add_argument(
        "-n",
        "--lines",
        type=int,
        metavar="N",
        help=f"only the last N lines; default: all of one process, {_LINES_OF_EACH} of several",
    )


def run(args: argparse.Namespace) -> int:
    """Prints the lines, and returns the exit code."""
    from muxrl.orchestrator.manage.logs import Logs
    from muxrl.orchestrator.records.run_directory import RunDirectory

    logs = Logs(RunDirectory.open(args.run), args.processes)
    is_one = len(args.processes) == 1
    if args.lines is not None or not is_one:
        logs.begin(_LINES_OF_EACH if args.lines is None else max(1, args.lines))
    width = max(map(len, logs.processes), default=0)
    with contextlib.suppress(KeyboardInterrupt):
        for process, line in logs.follow() if args.follow else logs.read():
            sys.stdout.write(f"{line}\n" if is_one else f"{process:{width}} | {line}\n")
            if args.follow:
                sys.stdout.flush()
    return ExitCode.DONE
