"""Makes animated pictures of episodes, as they are played or from a recorded episode.

A recorded episode is played again in a new environment, with its seed, parameters and actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.around import Around
from muxrl.client.adapters.simulation import Simulation, SimulationError, StepResult
from muxrl.orchestrator.errors import CannotEvaluate
from muxrl.orchestrator.evaluations.frozen import open_run
from muxrl.orchestrator.records.played import Row, read_episodes
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.supervise.episodes import make_copy

_RENDER_MODE = "rgb_array"
_FRAME_MS = 100


class Filmed(Around):
    """Makes an animated GIF of each episode, ``episode-SEED.gif``, ten steps a second.

    Args:
        simulation: to film; its environment was made with ``render_mode="rgb_array"``.
        folder: where the pictures go.

    Raises:
        CannotEvaluate: the environment gives no picture.
    """

    def __init__(self, simulation: Simulation, folder: Path) -> None:
        super().__init__(simulation)
        self._folder = folder
        self._name = ""
        simulation.reset(0)  # many environments cannot render before a reset
        self._frames = [self._picture()]

    def reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        observations, infos = self._inside.reset(seed, options)
        self._name, self._frames = f"episode-{seed}.gif", [self._picture()]
        return observations, infos

    def step(self, actions: dict[str, Any]) -> StepResult:
        result: StepResult = self._inside.step(actions)
        self._frames.append(self._picture())
        if result.is_over:
            self._save()
        return result

    def _picture(self) -> NDArray[np.uint8]:
        render = getattr(self._inside, "render", None)
        picture = None if render is None else render()
        if not (isinstance(picture, np.ndarray) and picture.ndim == 3 and picture.shape[2] == 3):
            got = type(picture).__name__ if picture is None else f"shape {np.shape(picture)}"
            raise CannotEvaluate(
                f"the environment cannot be filmed: with render_mode={_RENDER_MODE!r} its render() "
                f"gave {got}, not an array of [height, width, 3]"
            )
        return np.array(picture, np.uint8)  # many environments draw each step into the same array

    def _save(self) -> None:
        from PIL import Image

        first, *rest = (Image.fromarray(frame) for frame in self._frames)
        first.save(
            self._folder / self._name, save_all=True, append_images=rest, duration=_FRAME_MS, loop=0
        )
        self._frames = []


def filmed_copy(make: Callable[..., Simulation], video: Path) -> Filmed:
    """Makes an environment that is filmed.

    Raises:
        CannotEvaluate: the environment cannot be filmed.
    """
    try:
        made = make(render_mode=_RENDER_MODE)
    except SimulationError as error:
        raise CannotEvaluate(f"the environment cannot be filmed: {error}") from error
    return Filmed(made, video)


def recorded_files(run: Path) -> list[Path]:
    """Returns the files of the episodes that a run has recorded, the newest last.

    Raises:
        CannotEvaluate: there are none.
    """
    files = list(RunDirectory.open(run).episodes.rglob("*.parquet"))
    if not files:
        raise CannotEvaluate(
            f"{run} has recorded no episodes; with simulation.record: 0.01 a run records one of a "
            "hundred training episodes"
        )
    return sorted(files, key=lambda path: path.stat().st_mtime)


def find_episode(files: list[Path], seed: int | None) -> tuple[list[Row], dict[str, float]]:
    """Returns the rows and parameters of the episode with a seed; None: of the newest episode.

    Raises:
        CannotEvaluate: there is no such episode, or its file cannot be read.
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
        run: the run's directory.
        rows: of the episode.
        parameters: of the episode.
        folder: a new folder for the picture.

    Returns:
        "", or a sentence if observations differ from the record.

    Raises:
        CannotEvaluate: the environment cannot be filmed.
    """
    config = open_run(run)[1].simulation
    folder.mkdir(parents=True)
    simulation = filmed_copy(partial(make_copy, config, config.num_processes, 0), folder)
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
