"""Rewards divided by the running standard deviation of the discounted return.

So that one learning rate and one critic fit tasks whose rewards are large or small. The mean stays:
shifting rewards would change what is best. As Engstrom et al. (2020), "Implementation Matters in
Deep Policy Gradients", and Gymnasium's `NormalizeReward`; clipped as in OpenAI Baselines'
`VecNormalize`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from muxrl.servers.running_statistics import RunningStatistics

CLIP = 10.0
"""Largest scaled reward. While nearly all rewards were 0, the first others would be huge."""


class RewardScale:
    """The scale of one policy's rewards.

    Args:
        gamma: the algorithm's discount.
    """

    def __init__(self, gamma: float) -> None:
        self._gamma = gamma
        self.statistics = RunningStatistics(())

    def scale(self, reward: float, discounted: float) -> tuple[float, float]:
        """Counts a reward in, and scales it.

        Args:
            reward: of one transition.
            discounted: the same agent's discounted sum of the rewards before it in the episode.

        Returns:
            The scaled reward, and the discounted sum with this one.
        """
        discounted = self._gamma * discounted + reward
        self.statistics.add(np.array([discounted]))
        deviation = float(self.statistics.variance) ** 0.5 or 1.0
        return max(-CLIP, min(CLIP, reward / deviation)), discounted

    def get_state(self) -> dict[str, Any]:
        """Returns its statistics, as plain values and arrays."""
        return self.statistics.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on with what `get_state` returned."""
        self.statistics.set_state(state)
