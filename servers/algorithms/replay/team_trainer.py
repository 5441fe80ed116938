"""What trainers of teams share that learn from a replay: QMIX and its kin, MASAC, MADDPG.

All members of a team are one row, so that each transition has all of them:

======================  ================================  =========================================
part of an observation  shape, dtype                      meaning
======================  ================================  =========================================
``obs``                 ``[n, obs_dim]`` float32          one row per member, zero-padded
``state``               ``[state_dim]`` float32           what the mixer may see while training
``action_mask``         ``[n, n_actions]`` float32        1 = the member may choose this action
``alive``               ``[n]`` float32                   1 = the member is asked to act now
``last_action``         ``[n]`` float32                   its previous action, -1 for none
======================  ================================  =========================================

A member that has departed or is not asked to act at this step is *absent*: its row is zero, its
``alive`` 0, its last action -1, and its mask allows action 0 only, which is never sent.
`muxrl.servers.agents.inputs` reads all this.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from muxrl.servers.algorithms.columns import REWARDS
from muxrl.servers.algorithms.replay.replay_trainer import ReplayTrainer
from muxrl.servers.episodes.reward_scale import RewardDeviation
from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.trainers.declared_settings import (
    Check,
    Count,
    Limit,
    NotNegative,
    Settings,
    Share,
)
from muxrl.servers.trainers.interface import PolicySpec


class TeamReplaySettings(Settings, ABC):
    """Those that all have."""

    center_rewards: bool = False
    """Whether `standardize_rewards` subtracts the mean, too: for episodes of equal length."""
    gamma: Share = 0.99
    """Discount of each step's reward."""
    grad_clip: Limit = 10.0
    """Largest norm of the gradient, of each loss by itself; None: no clip."""
    hidden_dim: Count = 64
    """Units of the members' shared network."""
    min_sample_timesteps_per_iteration: int = 1_000
    """Env steps per training record, at least."""
    min_time_s_per_iteration: NotNegative | None = None
    """Seconds per training record, at least."""
    obs_agent_id: bool = True
    """Whether the members' network reads its member's id, one-hot."""
    standardize_rewards: bool = False
    """Whether rewards are divided by the standard deviation of all rewards stored so far."""
    tau: Annotated[
        float, Check(lambda v: 0.0 < v <= 1.0, "must lie in (0, 1]; 1 copies the networks")
    ] = 1.0
    """How far target networks move towards the others at each update."""

    @property
    @abstractmethod
    def num_before_learning(self) -> int:
        """Entries of the replay before the first update."""

    @property
    @abstractmethod
    def updates_per_entry(self) -> float:
        """Updates that a new entry brings, perhaps a fraction."""

    def num_entries_for(self, num_updates: int) -> int:
        """Returns how many entries have to be played for so many updates."""
        # The entry that makes the replay large enough counts already.
        return self.num_before_learning - 1 + math.ceil(num_updates / self.updates_per_entry)

    def validate(self) -> None:
        super().validate()
        if self.center_rewards and not self.standardize_rewards:
            self.refuse(
                "center_rewards=True: it is a part of standardize_rewards, so set that to true, too"
            )


class TeamTrainer(ReplayTrainer):
    """Learns from its replay once enough is in it; two teams of a policy share it."""

    forms_teams = True
    samples_actions = False
    settings: TeamReplaySettings

    def __init__(self, policy: PolicySpec, settings: TeamReplaySettings) -> None:
        super().__init__(policy, settings)
        self.rewards = RewardDeviation()
        """Of those stored, with `standardize_rewards`."""
        self._num_stored = 0
        """Entries that came, also those that the replay has no room for any more."""

    def updates_for(
        self, stored: Sequence[Trajectory], num_before: int, num_new: int, num_env_steps: int
    ) -> float:
        if self.settings.standardize_rewards:
            for one in stored:
                self.rewards.add(one.rewards)
        # None for those before learning begins: all of their updates would come in one long burst.
        num_waiting = max(0, self.settings.num_before_learning - 1 - self._num_stored)
        self._num_stored += num_new
        return max(0, num_new - num_waiting) * self.settings.updates_per_entry

    def draw(self) -> dict[str, Any]:
        batch = super().draw()
        if self.settings.standardize_rewards:
            mean = float(self.rewards.mean) if self.settings.center_rewards else 0.0
            batch[REWARDS] = (batch[REWARDS] - mean) / self.rewards.std
        return batch

    def refill_replay(self, env_steps: int) -> None:
        self._num_stored = 0

    def more_state(self) -> dict[str, Any]:
        more = {"num_stored": self._num_stored, "rewards": self.rewards.get_state()}
        return {**super().more_state(), **more}

    def load_more(self, state: Mapping[str, Any]) -> None:
        super().load_more(state)
        self._num_stored = state["num_stored"]
        self.rewards.set_state(state["rewards"])
