"""What the loops of algorithms for teams add to that of any replay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, ClassVar

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.columns import Columns
from ray.rllib.utils.schedules.scheduler import Scheduler

from muxrl.servers.algorithms.replay.algorithm import ReplayAlgorithm
from muxrl.servers.episodes.reward_scale import RewardDeviation
from muxrl.servers.episodes.trajectories import Trajectory

_REWARD_SCALES_STATE = "reward_scales"


class TeamReplayAlgorithm(ReplayAlgorithm):
    """Trains each module on steps or episodes of its teams; see `TeamReplayConfig`.

    Two teams that share a module also share its replay: an entry of each is an entry. After a
    restore of RLlib's checkpoint, learning goes on once ``num_steps_before_learning`` or
    ``num_episodes_before_learning`` new ones are there.

    Attributes:
        exploration_setting: the setting that says how much is explored, a number or a schedule
            over env steps; its value is a metric of that name. "": there is none.
    """

    exploration_setting: ClassVar[str] = ""

    def setup(self, config: AlgorithmConfig) -> None:
        super().setup(config)
        self._reward_scales: dict[str, RewardDeviation] = defaultdict(RewardDeviation)
        self._exploration: Scheduler | None = None
        if self.exploration_setting:
            self._exploration = Scheduler(
                fixed_value_or_schedule=getattr(self.config, self.exploration_setting),
                framework="torch",
            )

    @property
    def batch_size(self) -> int:
        return int(self.config.replay_setting("batch_size"))

    def note_stored(
        self, policy_id: str, stored: Sequence[Trajectory], num_before: int, num_new: int
    ) -> None:
        config = self.config
        if config.standardize_rewards:
            for one in stored:
                self._reward_scales[policy_id].add(one.rewards[one.num_lookback :])
        # None for those before learning begins: all of their updates would come in one long burst.
        num_waiting = max(0, config.num_before_learning - 1 - num_before)
        num_counted = max(0, num_new - num_waiting)
        self.bring_updates(policy_id, num_counted * getattr(config, config.updates_setting))

    def _draw(self, policy_id: str) -> dict[str, Any]:
        batch = super()._draw(policy_id)
        if self.config.standardize_rewards:
            scale = self._reward_scales[policy_id]
            mean = float(scale.mean) if self.config.center_rewards else 0.0
            batch[Columns.REWARDS] = (batch[Columns.REWARDS] - mean) / scale.std
        return batch

    def log_progress(self) -> None:
        super().log_progress()
        if self._exploration is not None:
            value = float(self._exploration.update(self.num_env_steps))
            self.metrics.log_value(self.exploration_setting, value, window=1)
        for policy_id, replay in self._replays.items():
            self.metrics.log_value((f"num_{replay.unit}_stored", policy_id), len(replay), window=1)

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        state = super().get_state(*args, **kwargs)
        state[_REWARD_SCALES_STATE] = {p: s.get_state() for p, s in self._reward_scales.items()}
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        for policy_id, scale in state.get(_REWARD_SCALES_STATE, {}).items():
            self._reward_scales[policy_id].set_state(scale)
