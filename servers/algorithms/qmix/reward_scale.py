"""The spread of all rewards of a module, which they can be divided by before they are learnt.

EPyMARL's ``standardise_rewards`` subtracts the running mean, too. That adds a constant to every
step, so wherever a policy decides how long an episode lasts, it changes which policy is best (with
a mean above 0 it is a fine on living). Dividing alone changes no order of policies, so that is all
that is done here. And each step counts once, when it is stored, not every time it is sampled.
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
        """The deviation; 1 as long as all rewards were the same."""
        variance = self._sum_of_squares / self._count if self._count else 0.0
        # Rounding leaves a hair above 0 where rewards are equal.
        return variance**0.5 if variance > 1e-12 * (1.0 + self._mean**2) else 1.0

    def add(self, rewards: Any) -> None:
        """Takes in the rewards of an episode ``[T]``."""
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
        """For a checkpoint."""
        return {
            "count": self._count,
            "mean": self._mean,
            "sum_of_squares": self._sum_of_squares,
        }

    def set_state(self, state: Mapping[str, float]) -> None:
        """Goes on from a checkpoint."""
        self._count = int(state["count"])
        self._mean = float(state["mean"])
        self._sum_of_squares = float(state["sum_of_squares"])
