"""Recorded episodes played again: the same seed, parameters and actions in a new environment."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from muxrl.orchestrator.errors import CannotEvaluate
from muxrl.orchestrator.evaluations.evaluate import filmed_copy
from muxrl.orchestrator.evaluations.frozen import open_run
from muxrl.orchestrator.records.played import Row, read_episodes
from muxrl.orchestrator.records.run_directory import RunDirectory


def recorded_files(run: Path) -> list[Path]:
    """Returns the files of the episodes that a run has recorded, the newest one last.

    Raises:
        CannotEvaluate: there are none.
    """
    files = list(RunDirectory.open(run).episodes.rglob("*.parquet"))
    if not files:
        raise CannotEvaluate(
            f"{run} has recorded no episodes; simulation.record: 0.01 keeps one of a hundred"
        )
    return sorted(files, key=lambda path: path.stat().st_mtime)


def find_episode(files: list[Path], seed: int | None) -> tuple[list[Row], dict[str, float]]:
    """Returns the rows and parameters of the episode with that seed; None: of the newest.

    Raises:
        CannotEvaluate: there is none, or its file cannot be read.
    """
    of_seed = [path for path in files if seed is None or path.stem == str(seed)]
    if not of_seed:
        raise CannotEvaluate(f"no episode with the seed {seed} is recorded")
    try:
        return next(read_episodes(of_seed[-1]))
    except (OSError, ValueError) as error:
        raise CannotEvaluate(f"{of_seed[-1]}: {error}") from error


def film(run: Path, rows: list[Row], parameters: Mapping[str, float], folder: Path) -> str:
    """Plays an episode again, and makes a picture of it.

    Args:
        run: its directory.
        rows: of the episode.
        parameters: of the episode.
        folder: a new one for the picture.

    Returns:
        A sentence if the environment did not do as it had done, "" if it did.

    Raises:
        CannotEvaluate: it gives no pictures.
    """
    config = open_run(run)[1].simulation
    folder.mkdir(parents=True)
    simulation = filmed_copy(config, 0, folder)
    try:
        seen, _ = simulation.reset(rows[0]["seed"], parameters)
        for t, of_step in groupby(rows, itemgetter("t")):
            step = list(of_step)
            was = {row["agent"]: row["observation"] for row in step}
            if not _equal({a: one for a, one in was.items() if one is not None}, seen):
                return (
                    f"at step {t} agents observe something else than was recorded: the "
                    "environment is not deterministic for a seed, or has changed"
                )
            actions = {row["agent"]: row["action"] for row in step if row["action"] is not None}
            seen = simulation.step(actions).observations
    finally:
        simulation.close()
    return ""


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(np.array_equal(one, other))
