"""How much memory a server's replay takes once it is full, known before anything is played.

What counts are the arrays that are stored: observations as networks read them, actions, rewards.
Python's objects around them come on top, so the figures are least ones: on replays of small
observations these are the larger part.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

_REWARD_BYTES = 8  # RLlib's columns are float64


@dataclass(frozen=True)
class ReplaySize:
    """Of one server's replay, all policies together."""

    capacity: str
    """In words: "50,000 agent steps"."""
    num_bytes: int
    """When it is full."""
    setting: str
    """That decides its capacity."""
    per_env_step: bool = False
    """Whether it holds whole episodes: then it is `num_bytes` for each env step of their mean
    length."""
    longest: int = 0
    """Env steps of the longest entry, to which an update pads what it draws; 0: it pads none."""
    update_bytes: int = 0
    """Of what an update draws then, as it is stored; networks add what they compute of it."""

    def when_full(self, episode_length: float) -> float:
        """Returns the bytes, for episodes of this mean length in env steps."""
        return self.num_bytes * episode_length if self.per_env_step else float(self.num_bytes)


def bytes_of(space: spaces.Space[Any], booleans: Collection[str] = ()) -> int:
    """Returns how large the arrays of one value of a space are.

    Args:
        space: as networks read or write it.
        booleans: keys of a Dict whose numbers are stored as one byte each.
    """
    if isinstance(space, spaces.Dict):
        return sum(
            math.prod(part.shape or ()) if key in booleans else bytes_of(part)
            for key, part in space.spaces.items()
        )
    if isinstance(space, spaces.Tuple):
        return sum(map(bytes_of, space.spaces))
    return math.prod(space.shape or ()) * np.dtype(space.dtype).itemsize


def of_steps(seat_spaces: Collection[tuple[Any, Any]], settings: Mapping[str, Any]) -> ReplaySize:
    """Returns the size of RLlib's replay buffer, which holds single agents' steps.

    Args:
        seat_spaces: the observation and the action space of every agent; all act about as often.
        settings: ``replay_buffer_config``.
    """
    capacity = int(settings["capacity"])
    each = [bytes_of(seen) + bytes_of(done) + _REWARD_BYTES for seen, done in seat_spaces]
    mean = sum(each) / len(each)
    return ReplaySize(
        f"{capacity:,} agent steps", round(capacity * mean), "replay_buffer_config, key 'capacity'"
    )
