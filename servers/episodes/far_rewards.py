"""Says when a reward is far outside of what came before: finite, below every limit, and a mistake.

Looked at where batches are delivered, not in each step, for which simulations wait.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np

from muxrl.servers.episodes.trajectories import Chunk

logger = logging.getLogger(__name__)

_NUM_KNOWN = 1_000
"""Rewards that tell what is usual."""
_FAR = 1e3
_LARGE = 1e4
"""A first goal of 10 among steps of -0.001 is no mistake."""


class FarRewards:
    """The largest reward so far, and a warning for one far beyond it, which then is the largest."""

    def __init__(self) -> None:
        self._largest = 0.0
        self._num = 0

    def look_at(self, chunks: Iterable[Chunk]) -> None:
        """Takes in the rewards of a batch."""
        for chunk in chunks:
            for one in chunk.trajectories:
                if not len(one):
                    continue
                rewards = np.abs(one.rewards)
                size = float(rewards.max())
                if self._num >= _NUM_KNOWN and size > max(_LARGE, _FAR * self._largest):
                    logger.warning(
                        "a reward of %r in episode %s is %.3g, and the largest of the %d before it "
                        "was %.3g: is it a mistake? limits.max_abs_reward refuses larger ones",
                        one.seat_id,
                        one.episode_id,
                        one.rewards[int(rewards.argmax())],
                        self._num,
                        self._largest,
                    )
                self._largest = max(self._largest, size)
                self._num += len(one)
