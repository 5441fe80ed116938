"""One episode on one server, as its client keeps it: what the server is to be told next."""

from __future__ import annotations

from typing import Any

from muxrl.protocol.episode import EpisodeStateMachine
from muxrl.protocol.messages import Flag


class ServerSide:
    """The episode on one server, and what that server is to be told next."""

    __slots__ = ("acted", "done", "ended_at", "final_observations", "late_rewards", "machine",
                 "returns", "rewards", "terminations", "told_at", "truncations")  # fmt: skip

    def __init__(self, episode_id: str) -> None:
        self.machine = EpisodeStateMachine(episode_id)
        self.told_at = 0.0
        """When the server was last told of the episode (monotonic)."""
        self.acted: set[str] = set()
        """Agents that have."""
        self.returns: dict[str, float] = {}
        """Of the agents that have earned something."""
        self.ended_at: dict[str, int] = {}
        """By agent whose end the server is to be told: after how many env steps it ended, or the
        last of its team."""
        self.done: set[str] = set()
        """Members of teams that have ended, and have not come back."""
        self.rewards: dict[str, float] = {}
        self.late_rewards: dict[str, float] = {}
        self.terminations: dict[str, Flag] = {}
        self.truncations: dict[str, Flag] = {}
        self.final_observations: dict[str, Any] = {}

    @property
    def all_returns(self) -> dict[str, float]:
        """Of all that have acted, too."""
        return self.returns | dict.fromkeys(sorted(self.acted - self.returns.keys()), 0.0)

    def clear(self) -> None:
        """Forgets what has just been put into an item."""
        self.rewards, self.terminations, self.truncations = {}, {}, {}
        self.final_observations, self.late_rewards = {}, {}
        self.ended_at = {}

    def is_late(self, agent_id: str, num_steps: int) -> bool:
        """Whether an agent ended in an env step before, which the server has not been told."""
        return self.ended_at.get(agent_id, num_steps) < num_steps
