"""Writes and reads the files of contestants and updaters about their updates.

A contestant has a file for each of its servers, with a JSON object in each line: the number of env
steps that were trained on so far. An updater has one file, with a list of seconds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class UpdateLog:
    """Writes one server's file.

    Args:
        folder: of all servers' files.
        server: name of the server.
    """

    def __init__(self, folder: Path, server: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{server}.jsonl"

    def add(self, env_steps: int) -> None:
        """Adds the number of env steps that have been trained on since the start."""
        with self._path.open("a") as file:
            file.write(json.dumps({"env_steps": int(env_steps)}) + "\n")


def trained_env_steps(folder: Path, server: str) -> int:
    """Returns the env steps that a server has trained on so far; 0 before its first update."""
    path = folder / f"{server}.jsonl"
    if not path.exists():
        return 0
    lines = path.read_text().split("\n")[:-1]  # the last one may be half written
    return int(json.loads(lines[-1])["env_steps"]) if lines else 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that `Contestant.command` gives to every contestant's program."""
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--servers", type=int, required=True)
    parser.add_argument("--simulations", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)


def update_arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Returns the arguments of an updater: number of updates, seed, and file for the seconds."""
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def time_updates(doc: str, make: Callable[[], T], update_s: Callable[[T, int], float]) -> None:
    """Times an updater's updates, each on another batch, and writes their seconds.

    Args:
        doc: docstring of the program.
        make: makes the learner.
        update_s: makes one update with the learner on the batch with a number; returns the seconds.
    """
    args = update_arguments(argparse.ArgumentParser(description=doc.splitlines()[0]))
    learner = make()
    numbers = range(args.seed * args.updates, (args.seed + 1) * args.updates)
    write_updates(args.out, [update_s(learner, number) for number in numbers])


def write_updates(path: Path, took: list[float]) -> None:
    """Writes the seconds of all updates, in order."""
    path.write_text(json.dumps(took))
