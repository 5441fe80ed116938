"""Declarations of algorithms by which a run is warned before anything is played.

They are how much has to be played before an algorithm learns, and how much memory a server's replay
takes once it is full. Only stored arrays count: observations as networks read them, actions and
rewards, without the last observation of each episode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized
from dataclasses import dataclass

from muxrl.protocol.spaces import Space, leaf_type
from muxrl.servers.agents.keys import BINARY_KEYS
from muxrl.servers.agents.masks import observed_parts
from muxrl.servers.agents.seats import Seat

STEP_BYTES = 4 + 1 + 4
"""Bytes that a replay of steps keeps for each, besides observation and action: the reward, whether
it terminated, and how many rows ahead the next observation is."""
_REWARD_BYTES = 4
BATCH = "train_batch_size_per_learner"
"""The setting for the number of env steps between two updates from whole batches."""
FIRST_UPDATE = "its first update"
FIRST_COPY = "the first copy to its target network"


@dataclass(frozen=True)
class Milestone:
    """Something that has to happen for an algorithm to learn.

    Attributes:
        what: the event in words, "its first update".
        settings: names of the settings that decide when it happens.
        env_steps: env steps that have to be recorded before.
        episodes: whole episodes of a policy that have to be recorded before; each team that shares
            the policy adds one.
        team_steps: steps that a policy's teams have to play before; each team that shares the
            policy adds one.
    """

    what: str
    settings: tuple[str, ...]
    env_steps: int = 0
    episodes: int = 0
    team_steps: int = 0


@dataclass(frozen=True)
class Schedule:
    """A setting whose value changes over env steps, up to a last point."""

    setting: str
    points: tuple[tuple[float, float], ...]
    """Pairs of env step and value, the first at 0."""


@dataclass(frozen=True)
class ReplaySize:
    """The size of one server's replay, for all its policies together."""

    capacity: str
    """The replay's capacity in words: "50,000 agent steps"."""
    num_bytes: int
    """Bytes of the full replay."""
    setting: str
    """Name of the setting that decides its capacity."""
    per_env_step: bool = False
    """Whether it holds whole episodes: `num_bytes` then counts for each env step of their mean
    length."""
    longest: int = 0
    """Env steps of the longest entry, to which an update pads all that it draws; 0: no padding."""
    update_bytes: int = 0
    """Bytes that a padded update draws, as they are stored; activations of networks come on top."""

    def when_full(self, episode_length: float) -> float:
        """Returns the bytes of the full replay, for episodes of a mean length in env steps."""
        return self.num_bytes * episode_length if self.per_env_step else float(self.num_bytes)


def bytes_of(space: Space) -> int:
    """Returns the bytes of one value of a space, in the arrays that networks read or write."""
    sizes = {key: leaf_type(part) for key, part in observed_parts(space).items()}
    return sum(
        math.prod(shape) * (1 if key in BINARY_KEYS else dtype.itemsize)
        for key, (dtype, shape) in sizes.items()
    )


def of_steps(seats: Mapping[str, Seat], capacity: int, setting: str, unit: str) -> ReplaySize:
    """Returns the size of a server's replay if each policy has a `StepReplay`.

    Args:
        seats: of the server.
        capacity: of each policy's replay, in steps.
        setting: name of the setting that decides the capacity.
        unit: of what is stored, "agent steps".
    """
    each = _step_bytes(seats, STEP_BYTES)
    return ReplaySize(_in_words(capacity, unit, each), capacity * sum(each), setting)


def of_episodes(
    seats: Mapping[str, Seat], capacity: int, setting: str, *, longest: int, batch_size: int
) -> ReplaySize:
    """Returns the size of a server's replay if each policy has an `EpisodeReplay`.

    For the other arguments see `of_steps`.

    Args:
        longest: env steps of the longest episode.
        batch_size: episodes that an update draws.
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
    """Returns the bytes of a step of each policy; seats that share a policy have equal spaces."""
    return [
        bytes_of(seat.observation_space) + bytes_of(seat.action_space) + more
        for seat in {seat.policy_id: seat for seat in seats.values()}.values()
    ]


def _in_words(capacity: int, unit: str, policies: Sized) -> str:
    of_each = f" of each of {len(policies)} policies" if len(policies) > 1 else ""
    return f"{capacity:,} {unit}{of_each}"
