"""The base class of team trainers with a replay: QMIX and its variants, MASAC and MADDPG.

All members of a team are in one row, so that each transition has all of them:

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

from collections.abc import Sequence
from typing import Any

from muxrl.servers.algorithms.columns import REWARDS
from muxrl.servers.algorithms.replay.replay_trainer import ReplayTrainer
from muxrl.servers.algorithms.settings.teams import TeamReplaySettings
from muxrl.servers.episodes.reward_scale import RewardDeviation
from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.trainers.interface import PolicySpec


class TeamTrainer(ReplayTrainer):
    """Learns from its replay once enough is in it; teams of the same policy share the replay."""

    saved = {**ReplayTrainer.saved, "num_stored": "_num_stored", "rewards": "rewards"}
    settings: TeamReplaySettings

    def __init__(self, policy: PolicySpec, settings: TeamReplaySettings) -> None:
        super().__init__(policy, settings)
        self.rewards = RewardDeviation()
        """Statistics of the stored rewards, with `standardize_rewards`."""
        self._num_stored = 0
        """Entries that were stored so far, including those that were replaced since."""

    def updates_for(self, stored: Sequence[Trajectory], num_new: int, num_env_steps: int) -> float:
        if self.settings.standardize_rewards:
            for one in stored:
                self.rewards.add(one.rewards)
        # Entries before learning begins bring no updates, which would come in one long burst.
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
