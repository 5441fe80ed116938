"""``muxrl replay``: show an episode that a run has recorded.

Shows a training episode that simulation.record has kept, step by step.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from muxrl.orchestrator.commands.terminal import quiet
from muxrl.orchestrator.errors import CannotEvaluate, ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's directory")
    parser.add_argument(
        "--seed", type=int, metavar="S", help="of the episode; default: the newest one"
    )
    parser.add_argument(
        "--video",
        type=Path,
        metavar="FOLDER",
        help="play it again and film it (an animated GIF), if the environment renders 'rgb_array'",
    )
    parser.add_argument(
        "--minari",
        metavar="ID",
        help="write all recorded episodes as a Minari dataset, such as chase/prey-v0",
    )
    parser.add_argument("--agent", metavar="NAME", help="whose steps the dataset has")


def run(args: argparse.Namespace) -> int:
    """Shows the episode, and returns the exit code."""
    if args.minari:
        return _write_dataset(args)
    with quiet():
        import numpy as np

        from muxrl.orchestrator.evaluations.replay import film, find_episode, recorded_files

        files = recorded_files(args.run)
        rows, parameters = find_episode(files, args.seed)
        seed = rows[0]["seed"]
        difference = film(args.run, rows, parameters, args.video) if args.video else ""
    given = "".join(f", {name} {value:g}" for name, value in parameters.items())
    sys.stdout.write(f"seed {seed}{given}, of {len(files)} recorded episodes\n")
    if args.video:
        sys.stdout.write(f"{difference}\n" if difference else f"filmed in {args.video}\n")
        return ExitCode.FAILED if difference else ExitCode.DONE
    with np.printoptions(precision=3, threshold=8, suppress=True):
        for row in rows:
            ends = "".join(f" {end}" for end in ("terminated", "truncated") if row[end])
            sys.stdout.write(
                f"t={row['t']} {row['agent']} sees {row['observation']}, does {row['action']}, "
                f"earns {row['reward']:g}{ends}\n"
            )
    return ExitCode.DONE


def _write_dataset(args: argparse.Namespace) -> int:
    from muxrl.orchestrator.evaluations.replay import recorded_files
    from muxrl.orchestrator.records.minari_dataset import write_dataset

    files, about = recorded_files(args.run), f"training episodes of {args.run.resolve().name}"
    try:
        num_episodes = write_dataset(files, args.minari, args.agent, about)
    except ModuleNotFoundError as error:
        raise CannotEvaluate(f"{error}: pip install 'minari[hdf5]'") from error
    except (OSError, ValueError) as error:
        raise CannotEvaluate(str(error)) from error
    sys.stdout.write(f"{args.minari}: {num_episodes} episodes\n")
    return ExitCode.DONE
