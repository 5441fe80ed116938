"""The counts of a server, or of a gateway to several servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from muxrl.protocol.messages import Status


@dataclass
class EpisodeCounts:
    """The counts of a server over all of its episodes."""

    num_env_steps: int = 0
    num_agent_steps: int = 0
    num_episodes: int = 0
    num_aborted: int = 0
    num_expired: int = 0
    num_stale_steps: int = 0
    """Agent steps that clients played with weights too old to teach the policy."""
    num_logged_actions: int = 0
    """Actions that simulations chose themselves, in training."""
    recent_returns: list[float] = field(default_factory=list)
    """The mean raw return of each of the last 100 episodes, over the agents that were in it; an
    episode without any agent is left out."""

    def add_episode(self, returns: Mapping[str, float]) -> None:
        """Counts an ended training episode, with the returns of the agents that were in it."""
        self.num_episodes += 1
        if returns:
            self.recent_returns.append(sum(returns.values()) / len(returns))
            del self.recent_returns[:-100]

    def in_status(self) -> dict[str, Any]:
        """Returns the counts that a `Status` has, by their names there."""
        return {x: getattr(self, x) for x in Status.__struct_fields__ if hasattr(self, x)}

    @property
    def num_returns(self) -> int:
        """Number of episodes behind `episode_return_mean`."""
        return len(self.recent_returns)

    @property
    def episode_return_mean(self) -> float | None:
        """Mean over the last 100 training episodes with agents; None: there were none."""
        if not self.recent_returns:
            return None
        return sum(self.recent_returns) / len(self.recent_returns)
