"""``muxrl evaluate``: measure the policies of a finished run on episodes that train nothing.

Serves the checkpoints of a run, frozen, and plays episodes with them.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from muxrl.orchestrator.commands.terminal import quiet
from muxrl.orchestrator.errors import ExitCode

T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's directory")
    parser.add_argument(
        "--episodes", type=int, default=100, metavar="N", help="how many; default: 100"
    )
    parser.add_argument(
        "--seed", type=int, metavar="S", help="of the first episode; default: evaluation.seed"
    )
    add_acting_rule(
        parser,
        explore="sample the actions of stochastic policies, as in training",
        greedy="take their likeliest action; default: as the run's own evaluations",
    )
    parser.add_argument(
        "--checkpoint", default="last", metavar="NAME", help="by env steps, or best; default: last"
    )
    parser.add_argument(
        "--replace",
        action="append",
        default=[],
        type=pair_of(str, "SERVER=random, SERVER=module:name or SERVER=FOLDER"),
        metavar="SERVER=WHAT",
        help="let WHAT play a server's agents: random, a function as module:name, or the folder of "
        "a checkpoint",
    )
    parser.add_argument(
        "--parameter",
        action="append",
        default=[],
        type=pair_of(_number, "NAME=NUMBER"),
        metavar="NAME=NUMBER",
        help="give each episode this one of simulation.parameters",
    )
    parser.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="write what each agent saw, did and earned, a JSON object a line, as pandas reads it",
    )
    parser.add_argument(
        "--video",
        type=Path,
        metavar="FOLDER",
        help="film each episode (an animated GIF), if the environment renders 'rgb_array'",
    )


def run(args: argparse.Namespace) -> int:
    """Plays the episodes, prints the returns, and returns the exit code."""
    with quiet():
        from muxrl.orchestrator.evaluations.evaluate import evaluate_run
        from muxrl.orchestrator.evaluations.evaluated import print_evaluation

        result = evaluate_run(
            args.run,
            num_episodes=args.episodes,
            seed=args.seed,
            should_explore=args.should_explore,
            checkpoint=args.checkpoint,
            replace=dict(args.replace),
            parameters=dict(args.parameter),
            record=args.record,
            video=args.video,
        )
    print_evaluation(result)
    sys.stdout.write(f"written to {result.path}\n")
    return ExitCode.DONE


def _number(text: str) -> float:
    return int(text) if text.lstrip("-").isdigit() else float(text)


def pair_of(value: Callable[[str], T], form: str) -> Callable[[str], tuple[str, T]]:
    """Returns what reads arguments NAME=VALUE; a refusal says that they must look like `form`."""

    def read(text: str) -> tuple[str, T]:
        # A text may have a sign of equality, and so may a name before a number.
        for name, _, rest in (text.partition("="), text.rpartition("=")):
            with contextlib.suppress(ValueError):
                if name and rest:
                    return name, value(rest)
        raise argparse.ArgumentTypeError(f"{text!r} must look like {form}")

    return read


def add_acting_rule(parser: argparse.ArgumentParser, *, explore: str, greedy: str) -> None:
    """Adds the two flags as ``should_explore``: True, False, or None for the runs' own rule.

    Args:
        explore: help for the first.
        greedy: help for the second.
    """
    rule = parser.add_mutually_exclusive_group()
    for flag, value, text in (("--explore", True, explore), ("--greedy", False, greedy)):
        rule.add_argument(flag, dest="should_explore", action="store_const", const=value, help=text)
