"""The picture of a study that is a sweep, drawn from the files that `muxrl compare` wrote.

    python -m muxrl.experiments.studies.compared_curves experiments/studies/doors/results \
        --title "doors: 64 episodes a point, 200 at the end"
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from muxrl.experiments.studies.pictures import Panel, draw_curves

_ROLE = "role:all"


def draw_compared(folder: Path, title: str, subject: str = _ROLE) -> Path:
    """Draws ``curves.png`` beside the files it is drawn from.

    Args:
        folder: with ``curves.csv`` and ``runs.csv``.
        title: of the picture; says how returns were measured.
        subject: whose return: "role:all" is the mean over the agents, "total" their sum.

    Returns:
        The picture's path.

    Raises:
        OSError: a file is missing.
        ValueError: they have nothing on that subject.
    """
    curves: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in _rows(folder / "curves.csv", subject):
        points = curves.setdefault(row["contestant"].removesuffix(" all"), {})
        points.setdefault(row["seed"], []).append((float(row["env_steps"]), float(row["return"])))
    if not curves:
        raise ValueError(f"{folder / 'curves.csv'} has no curve of {subject}")
    at_random = [float(row["random_in_place"]) for row in _rows(folder / "runs.csv", subject)]
    by_name = {name: list(seeds.values()) for name, seeds in curves.items()}
    panel = Panel("", "env steps", by_name, {"random": fmean(at_random)})
    draw_curves([[panel]], title, folder / "curves.png")
    return folder / "curves.png"


def _rows(path: Path, subject: str) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        yield from (row for row in csv.DictReader(file) if row["subject"] == subject)


def main() -> None:
    """Draws what the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--title", required=True)
    parser.add_argument("--subject", default=_ROLE, help='"total" is the sum over the agents')
    args = parser.parse_args()
    print(draw_compared(args.folder, args.title, args.subject))


if __name__ == "__main__":
    main()
