"""The standard deviation of a module's rewards, by which they can be divided before learning.

EPyMARL's ``standardise_rewards`` subtracts the running mean, too. That adds a constant to every
step, so it changes which policy is best wherever a policy decides how long an episode lasts (a
mean above 0 penalises every step). Dividing alone keeps the order of policies. Each step counts
once, when it is stored, not every time it is sampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


class RewardScale:
    """Running standard deviation over all steps so far (Chan et al. 1979, equation 2.1)."""

    def __init__(self) -> None:
        self._count = 0
        self._mean = 0.0
        self._sum_of_squares = 0.0  # of the distances from the mean

    @property
    def std(self) -> float:
        """The deviation; 1 while all rewards have been the same."""
        variance = self._sum_of_squares / self._count if self._count else 0.0
        # Where rewards are equal, rounding can leave a little more than 0.
        return variance**0.5 if variance > 1e-12 * (1.0 + self._mean**2) else 1.0

    def add(self, rewards: Any) -> None:
        """Adds the rewards of an episode ``[T]``."""
        rewards = np.asarray(rewards, np.float64)
        if not rewards.size:
            return
        mean = float(rewards.mean())
        total = self._count + rewards.size
        distance = mean - self._mean
        self._sum_of_squares += float(((rewards - mean) ** 2).sum())
        self._sum_of_squares += distance**2 * self._count * rewards.size / total
        self._mean += distance * rewards.size / total
        self._count = total

    def get_state(self) -> dict[str, float]:
        """Returns the three numbers, for a checkpoint."""
        return {
            "count": self._count,
            "mean": self._mean,
            "sum_of_squares": self._sum_of_squares,
        }

    def set_state(self, state: Mapping[str, float]) -> None:
        """Restores what `get_state` returned."""
        self._count = int(state["count"])
        self._mean = float(state["mean"])
        self._sum_of_squares = float(state["sum_of_squares"])
