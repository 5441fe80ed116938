"""What a run is warned of, known before anything is played; an algorithm declares it.

It is what has to happen for it to learn, with how much has to be played before, and how much memory
a server's replay takes once it is full. There count the arrays that are stored: observations as
networks read them, actions, rewards; the last observation of an episode comes on top.
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
"""What a replay of steps keeps of each besides observation and action: reward, whether it
terminated, and how many rows ahead the step is that its value is bootstrapped from."""
_REWARD_BYTES = 4
BATCH = "train_batch_size_per_learner"
"""The setting that says how many env steps are between two updates from whole batches."""
FIRST_UPDATE = "its first update"
FIRST_COPY = "the first copy to its target network"


@dataclass(frozen=True)
class Milestone:
    """Something that has to happen for an algorithm to learn.

    Attributes:
        what: in words, "its first update".
        settings: those that decide when it comes.
        env_steps: that have to be recorded before.
        episodes: whole ones of a policy that have to be recorded before; an episode of each team
            that shares the policy is one.
        team_steps: that a policy's teams have to play before; a step of each team that shares the
            policy is one.
    """

    what: str
    settings: tuple[str, ...]
    env_steps: int = 0
    episodes: int = 0
    team_steps: int = 0


@dataclass(frozen=True)
class Schedule:
    """A setting that changes with the env steps, and ends at some value."""

    setting: str
    points: tuple[tuple[float, float], ...]
    """(env step, value), the first at 0."""


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


def bytes_of(space: Space) -> int:
    """Returns how large the arrays of one value of a space are, as networks read or write it."""
    sizes = {key: leaf_type(part) for key, part in observed_parts(space).items()}
    return sum(
        math.prod(shape) * (1 if key in BINARY_KEYS else dtype.itemsize)
        for key, (dtype, shape) in sizes.items()
    )


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
        bytes_of(seat.observation_space) + bytes_of(seat.action_space) + more
        for seat in {seat.policy_id: seat for seat in seats.values()}.values()
    ]


def _in_words(capacity: int, unit: str, policies: Sized) -> str:
    of_each = f" of each of {len(policies)} policies" if len(policies) > 1 else ""
    return f"{capacity:,} {unit}{of_each}"
