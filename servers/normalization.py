"""A server's running statistics: of observations, and of rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from muxrl.servers.observing import Observing
from muxrl.servers.reward_scale import RewardScale


@dataclass(frozen=True)
class Normalization:
    """What belongs to a checkpoint beside the weights, which mean little without it.

    Attributes:
        observing: reads the observations.
        rewards: by policy; {}: rewards are learned as they come.
    """

    observing: Observing
    rewards: Mapping[str, RewardScale] = field(default_factory=dict)

    def get_state(self) -> dict[str, Any]:
        """Returns all statistics, as plain values and arrays; for the thread that acts."""
        return {
            "observations": self.observing.get_state(),
            "rewards": {policy_id: scale.get_state() for policy_id, scale in self.rewards.items()},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on with what `get_state` returned; rewards that it lacks begin anew.

        Raises:
            ValueError: it is of other observations.
        """
        self.observing.set_state(state["observations"])
        for policy_id, scale in self.rewards.items():
            if policy_id in state["rewards"]:
                scale.set_state(state["rewards"][policy_id])
