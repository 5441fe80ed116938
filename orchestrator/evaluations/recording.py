"""Episodes to look at: filmed as they are played."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.around import Around
from muxrl.client.adapters.simulation import Simulation, StepResult
from muxrl.orchestrator.errors import CannotEvaluate

RENDER_MODE = "rgb_array"
_FRAME_MS = 100


class Filmed(Around):
    """Makes an animated GIF of each episode, ``episode-SEED.gif``, ten steps a second.

    Args:
        simulation: what is played; its environment was made with ``render_mode="rgb_array"``.
        folder: where the pictures go.

    Raises:
        CannotEvaluate: the environment gives no picture.
    """

    def __init__(self, simulation: Simulation, folder: Path) -> None:
        super().__init__(simulation)
        self._folder = folder
        self._name = ""
        simulation.reset(0)  # many environments have nothing to show before
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
                f"the environment cannot be filmed: with render_mode={RENDER_MODE!r} its render() "
                f"gave {got}, not an array of [height, width, 3]"
            )
        return np.array(picture, np.uint8)  # many draw each step into the same array

    def _save(self) -> None:
        from PIL import Image

        first, *rest = (Image.fromarray(frame) for frame in self._frames)
        first.save(
            self._folder / self._name, save_all=True, append_images=rest, duration=_FRAME_MS, loop=0
        )
        self._frames = []
