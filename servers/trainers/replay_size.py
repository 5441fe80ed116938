"""How much memory a server's replay takes once it is full, known before anything is played.

What counts are the arrays that are stored: observations as networks read them, actions, rewards.
The last observation of an episode comes on top.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sized
from dataclasses import dataclass

from muxrl.protocol.spaces import Space, leaf_type, parts_of
from muxrl.servers.agents.keys import BINARY_KEYS
from muxrl.servers.agents.seats import Seat
from muxrl.servers.agents.spaces import flat_size

STEP_BYTES = 4 + 1 + 4
"""What a replay of steps keeps of each besides observation and action: reward, whether it
terminated, and how many rows ahead the step is that its value is bootstrapped from."""
_REWARD_BYTES = 4


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


def bytes_of(space: Space, booleans: Collection[str] = ()) -> int:
    """Returns how large the arrays of one value of a space are.

    Args:
        space: as networks read or write it.
        booleans: keys of a Dict whose numbers are stored as one byte each.
    """
    parts = parts_of(space)
    if parts is None:
        dtype, shape = leaf_type(space)
        return math.prod(shape) * dtype.itemsize
    return sum(flat_size(sub) if key in booleans else bytes_of(sub) for key, sub in parts)


def of_steps(seats: Mapping[str, Seat], capacity: int, setting: str, unit: str) -> ReplaySize:
    """Returns the size of a `StepReplay` for each policy.

    Args:
        seats: of the server.
        capacity: of each.
        setting: that decides it.
        unit: what is stored, "agent steps".
    """
    each = _step_bytes(seats, STEP_BYTES)
    return ReplaySize(_in_words(capacity, unit, each), capacity * sum(each), setting)


def of_episodes(
    seats: Mapping[str, Seat], capacity: int, setting: str, *, longest: int, batch_size: int
) -> ReplaySize:
    """Returns the size of an `EpisodeReplay` for each policy; see `of_steps`.

    Args:
        longest: env steps of the longest episode.
        batch_size: episodes in an update.
    """
    each = _step_bytes(seats, _REWARD_BYTES)
    return ReplaySize(
        _in_words(capacity, "episodes", each),
        capacity * sum(each),
        setting,
        per_env_step=True,
        longest=longest,
        update_bytes=batch_size * longest * max(each, default=0),
    )


def _step_bytes(seats: Mapping[str, Seat], more: int) -> list[int]:
    """Returns what a step of each policy takes; seats that share one are alike."""
    return [
        bytes_of(seat.observation_space, BINARY_KEYS) + bytes_of(seat.action_space) + more
        for seat in {seat.policy_id: seat for seat in seats.values()}.values()
    ]


def _in_words(capacity: int, unit: str, policies: Sized) -> str:
    of_each = f" of each of {len(policies)} policies" if len(policies) > 1 else ""
    return f"{capacity:,} {unit}{of_each}"
