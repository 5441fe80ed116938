"""Bright corner: the smallest task whose observation is an image of bytes.

Made for this project. Each of eight images is noise, drawn uniformly from 0..199, except that one
quarter, drawn uniformly, is brighter by 55. The agent is paid 1 for naming that quarter. An
episode's return:

    random   8 / 4 = 2
    oracle   8
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

NUM_IMAGES = 8


def random_return() -> float:
    """Returns the expected return of quarters named at random."""
    return NUM_IMAGES / 4


def oracle_return() -> float:
    """Returns the best return."""
    return float(NUM_IMAGES)


class BrightCorner(gymnasium.Env[Any, Any]):
    """Observation: an image, uint8 [size, size, 1]; action: a quarter, row by row, 0..3.

    Args:
        size: pixels of an edge, even.

    Raises:
        ValueError: the size is odd, or below 2.
    """

    action_space = spaces.Discrete(4)

    def __init__(self, size: int = 84) -> None:
        if size < 2 or size % 2:
            raise ValueError(f"size={size} has no quarters; it must be even, and 2 at least")
        self._half = size // 2
        self.observation_space = spaces.Box(0, 255, (size, size, 1), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = float(action == self._corner)
        self._t += 1
        return self._draw(), reward, self._t == NUM_IMAGES, False, {}

    def _draw(self) -> np.ndarray:
        image = self.np_random.integers(0, 200, self.observation_space.shape, np.uint8)
        self._corner = int(self.np_random.integers(4))
        half = self._half
        row, column = divmod(self._corner, 2)
        image[half * row : half * (row + 1), half * column : half * (column + 1)] += 55
        return image
