"""``muxrl report``: write table and picture of a run, or of several seeds together.

Reports on what a run recorded, whether it ended, was cut short or crashed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from muxrl.orchestrator.errors import ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="directories of runs that differ in seed"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where the report goes; default: into the run, if it is one",
    )
    over = parser.add_mutually_exclusive_group()
    over.add_argument(
        "--over-seeds",
        action="store_true",
        help="intervals of several runs speak of training again with other seeds; the default",
    )
    over.add_argument(
        "--over-episodes",
        action="store_true",
        help="they speak of these runs' policies, in other episodes",
    )


def run(args: argparse.Namespace) -> int:
    """Writes the report, prints it, and returns the exit code."""
    from muxrl.orchestrator.errors import ConfigError
    from muxrl.orchestrator.records.run_directory import RunDirectory
    from muxrl.orchestrator.reports.report import combine_runs, print_report, write_report

    if len(args.runs) > 1 and args.out is None:
        raise ConfigError(
            ["several runs need --out DIR, since their report belongs to none of them"]
        )
    if args.out is None:
        report = write_report(RunDirectory.open(args.runs[0]))
    else:
        report = combine_runs(args.runs, args.out, over_episodes=args.over_episodes)
    print_report(report)
    return ExitCode.DONE
