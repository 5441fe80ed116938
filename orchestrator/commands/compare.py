"""``muxrl compare``: compare runs of one simulation, or the runs of a sweep.

Compares runs of one simulation, side by side and head to head.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from muxrl.orchestrator.commands.evaluate import add_acting_rule, pair_of
from muxrl.orchestrator.commands.terminal import quiet
from muxrl.orchestrator.errors import ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="RUN", help="directories of runs, or of sweeps"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where the report goes; default: comparison, in the sweep or beside the first run",
    )
    parser.add_argument(
        "--episodes",
        type=int,
        default=100,
        metavar="N",
        help="of the baselines and of each match; default: 100",
    )
    parser.add_argument(
        "--head-to-head",
        action="store_true",
        help="let the policies of every run meet those of every other, in all roles",
    )
    parser.add_argument(
        "--role",
        action="append",
        default=[],
        type=pair_of(_names, "NAME=AGENT,AGENT"),
        metavar="NAME=AGENT,...",
        help="a role and its agents (names or patterns); default: as the sweep or servers have it",
    )
    parser.add_argument(
        "--interchangeable",
        default=[],
        type=_names,
        metavar="ROLE,ROLE",
        help="roles whose seats are rotated in the head to head",
    )
    parser.add_argument(
        "--budget",
        type=int,
        metavar="STEPS",
        help="env steps at which runs are compared; default: the most that all have",
    )
    parser.add_argument(
        "--threshold",
        action="append",
        default=[],
        type=pair_of(float, "role:NAME=10"),
        metavar="WHO=RETURN",
        help="what counts as reached (role:prey=10); default: halfway from random to the best",
    )
    parser.add_argument(
        "--cooperative",
        action="store_true",
        default=None,
        help="measure the sum over all agents, too; default: where there is one role, or all "
        "agents have the same return",
    )
    parser.add_argument(
        "--checkpoint",
        default="last",
        metavar="NAME",
        help="whose policies meet head to head: last, best, or by env steps; default: last",
    )
    parser.add_argument(
        "--snapshots",
        action="store_true",
        help="head to head of all checkpoints that the runs have at the same env steps: a curve of "
        "ratings",
    )
    add_acting_rule(
        parser,
        explore="sample the actions of stochastic policies that meet head to head",
        greedy="take their likeliest action; default: as in the runs' own evaluations",
    )


def _names(text: str) -> list[str]:
    return text.split(",")


def run(args: argparse.Namespace) -> int:
    """Writes the report, prints its summary, and returns the exit code."""
    with quiet():
        from muxrl.orchestrator.comparisons.compare import compare_runs, default_folder
        from muxrl.orchestrator.comparisons.output.page import print_comparison

        comparison = compare_runs(
            args.paths,
            num_episodes=args.episodes,
            should_meet=args.head_to_head,
            roles=dict(args.role) or None,
            interchangeable=args.interchangeable,
            budget=args.budget,
            thresholds=dict(args.threshold),
            should_explore=args.should_explore,
            checkpoint=args.checkpoint,
            snapshots=args.snapshots,
            cooperative=args.cooperative,
        )
        report = comparison.write(args.out or default_folder(args.paths))
    print_comparison(comparison)
    sys.stdout.write(f"written to {report}\n")
    return ExitCode.DONE
