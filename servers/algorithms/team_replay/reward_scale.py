"""The standard deviation of a module's rewards, by which they can be divided before learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class RewardScale:
    """The standard deviation of a module's rewards, by which they can be divided before learning.

    It is of all steps so far (Chan et al. 1979, equation 2.1); each counts once, when it is stored,
    not every time it is sampled. EPyMARL's ``standardise_rewards`` subtracts the running mean, too.
    That adds a constant to every step, so it changes which policy is best wherever a policy decides
    how long an episode lasts (a mean above 0 penalises every step). Dividing alone keeps the order
    of policies.
    """

    count: int = 0
    mean: float = 0.0
    sum_of_squares: float = 0.0
    """Of the distances from the mean."""

    @property
    def std(self) -> float:
        """The deviation; 1 while all rewards have been the same."""
        variance = self.sum_of_squares / self.count if self.count else 0.0
        # Where rewards are equal, rounding can leave a little more than 0.
        return variance**0.5 if variance > 1e-12 * (1.0 + self.mean**2) else 1.0

    def add(self, rewards: Any) -> None:
        """Adds the rewards of an episode ``[T]``."""
        rewards = np.asarray(rewards, np.float64)
        if not rewards.size:
            return
        mean = float(rewards.mean())
        total = self.count + rewards.size
        distance = mean - self.mean
        self.sum_of_squares += float(((rewards - mean) ** 2).sum())
        self.sum_of_squares += distance**2 * self.count * rewards.size / total
        self.mean += distance * rewards.size / total
        self.count = total
