"""What has to happen for an algorithm to learn, and how much has to be played before it can.

An algorithm declares them, so that a run can be warned of what is beyond its budget.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Milestone:
    """One such event.

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


BATCH = "train_batch_size_per_learner"
"""The setting that says how many env steps are between two updates from whole batches."""
FIRST_UPDATE = "its first update"
FIRST_COPY = "the first copy to its target network"


@dataclass(frozen=True)
class Schedule:
    """A setting that changes with the env steps, and ends at some value."""

    setting: str
    points: tuple[tuple[float, float], ...]
    """(env step, value), the first at 0."""
