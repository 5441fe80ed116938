"""Divides rewards by a running standard deviation: of the discounted return, or of the rewards.

So one learning rate and one critic fit tasks with large and with small rewards. Rewards are not
shifted: that would add a constant to every step, and so change which policy is best wherever a
policy decides how long an episode lasts. Dividing alone keeps the order of policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from muxrl.servers.agents.running_statistics import RunningStatistics

CLIP = 10.0
"""Largest scaled reward. If nearly all rewards were 0 so far, the first others would be huge."""


class RewardScale(RunningStatistics):
    """Scales one policy's rewards by the deviation of the discounted return.

    As in Engstrom et al. (2020), "Implementation Matters in Deep Policy Gradients", and Gymnasium's
    `NormalizeReward`; clipped as in OpenAI Baselines' `VecNormalize`.

    Args:
        gamma: the algorithm's discount.
    """

    def __init__(self, gamma: float) -> None:
        super().__init__(())
        self._gamma = gamma

    def scale(self, reward: float, discounted: float) -> tuple[float, float]:
        """Counts a reward, and returns it scaled.

        Args:
            reward: of one transition.
            discounted: the discounted sum of the same agent's earlier rewards in the episode.

        Returns:
            The scaled reward, and the discounted sum that includes this reward.
        """
        discounted = self._gamma * discounted + reward
        deviation = self.add_number(discounted) ** 0.5 or 1.0
        return max(-CLIP, min(CLIP, reward / deviation)), discounted


class RewardDeviation(RunningStatistics):
    """Deviation and mean of all rewards of one module so far, to scale rewards drawn from a replay.

    Each reward counts once, when it is stored, not every time it is drawn.
    """

    def __init__(self) -> None:
        super().__init__(())

    @property
    def std(self) -> float:
        """The deviation; 1 while all rewards have been equal."""
        variance = float(self.variance)
        # Rounding can leave a little more than 0 for equal rewards.
        return variance**0.5 if variance > 1e-12 * (1.0 + float(self.mean) ** 2) else 1.0

    def add(self, batch: Any) -> None:
        """Counts the rewards of an episode, ``[T]``."""
        if len(batch):
            super().add(np.asarray(batch, np.float64))

    def get_state(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "mean": float(self.mean),
            "sum_of_squares": float(self._squares),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state({**state, "squares": state["sum_of_squares"]})
