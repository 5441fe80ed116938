"""``muxrl evaluate``: measure the policies of a finished run on episodes that train nothing.

Serves the checkpoints of a run, frozen, and plays episodes with them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from muxrl.orchestrator.commands.terminal import quiet
from muxrl.orchestrator.errors import ExitCode


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
        type=_replacement,
        metavar="SERVER=WHAT",
        help="let WHAT play a server's agents: random, a function as module:name, or the folder of "
        "a checkpoint",
    )
    parser.add_argument(
        "--parameter",
        action="append",
        default=[],
        type=_parameter,
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


def _replacement(text: str) -> tuple[str, str]:
    server_id, _, what = text.partition("=")
    if not server_id or not what:
        raise argparse.ArgumentTypeError(
            f"{text!r} must look like SERVER=random, SERVER=module:name or SERVER=FOLDER"
        )
    return server_id, what


def _parameter(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        return name, int(number) if number.lstrip("-").isdigit() else float(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must look like NAME=NUMBER") from None


def add_acting_rule(parser: argparse.ArgumentParser, *, explore: str, greedy: str) -> None:
    """Adds the two flags as ``should_explore``: True, False, or None for the runs' own rule.

    Args:
        explore: help for the first.
        greedy: help for the second.
    """
    rule = parser.add_mutually_exclusive_group()
    for flag, value, text in (("--explore", True, explore), ("--greedy", False, greedy)):
        rule.add_argument(flag, dest="should_explore", action="store_const", const=value, help=text)
