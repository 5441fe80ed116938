"""What a server, or a gateway to several, has counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from muxrl.protocol.messages import Status


@dataclass
class EpisodeCounts:
    """What a server counts over all of its episodes."""

    num_env_steps: int = 0
    num_agent_steps: int = 0
    num_episodes: int = 0
    num_aborted: int = 0
    num_expired: int = 0
    num_stale_steps: int = 0
    """Agent steps that clients played with weights too old to teach the policy."""
    num_logged_actions: int = 0
    """That simulations chose themselves, in training."""
    recent_returns: list[float] = field(default_factory=list)
    """Of raw rewards: in each episode the mean over those agents that were in it; of those that
    none was in, nothing."""

    def add_episode(self, returns: Mapping[str, float]) -> None:
        """Receives a training episode that has ended: the returns of the agents that were in it."""
        self.num_episodes += 1
        if returns:
            self.recent_returns.append(sum(returns.values()) / len(returns))
            del self.recent_returns[:-100]

    def in_status(self) -> dict[str, Any]:
        """Returns what is counted here and stands in a `Status`, by its name there."""
        return {x: getattr(self, x) for x in Status.__struct_fields__ if hasattr(self, x)}

    @property
    def num_returns(self) -> int:
        """Episodes behind `episode_return_mean`."""
        return len(self.recent_returns)

    @property
    def episode_return_mean(self) -> float | None:
        """Mean over the last 100 training episodes that agents were in; None: there were none."""
        if not self.recent_returns:
            return None
        return sum(self.recent_returns) / len(self.recent_returns)
