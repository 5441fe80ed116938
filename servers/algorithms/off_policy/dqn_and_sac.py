"""DQN and SAC: RLlib's algorithms and losses, on replay buffers that draw every stored step.

DQN: Mnih et al. 2015; its n-step returns as in Rainbow, Hessel et al. 2018 (arXiv 1710.02298).
SAC: Haarnoja et al. 2018 (arXiv 1801.01290).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.dqn import dqn as rllib_dqn
from ray.rllib.algorithms.sac import sac as rllib_sac

from muxrl.servers.algorithms.off_policy.replay_buffer import PRIORITIZED
from muxrl.servers.algorithms.off_policy.step_replay import (
    EveryStepEpisodeReplayBuffer,
    EveryStepPrioritizedEpisodeReplayBuffer,
)


class _DrawsEveryStep:
    """An algorithm whose replay is one of `step_replay`, seeded; see `SavesReplay`."""

    def _create_local_replay_buffer_if_necessary(self, config: AlgorithmConfig) -> Any:
        arguments = dict(config.replay_buffer_config)
        is_prioritized = arguments.pop("type") == PRIORITIZED
        replay: Any = (
            EveryStepPrioritizedEpisodeReplayBuffer(**arguments)
            if is_prioritized
            else EveryStepEpisodeReplayBuffer(**arguments)
        )
        replay.rng = np.random.default_rng(config.seed)
        return replay

    def count_replay_bytes(self: Any) -> int:
        return int(self.local_replay_buffer.num_bytes)

    def get_replay_state(self: Any) -> dict[str, Any]:
        return dict(self.local_replay_buffer.get_state())

    def set_replay_state(self: Any, state: Mapping[str, Any]) -> None:
        self.local_replay_buffer.restore(
            state, self.env_runner.get_spaces(), self.config.policy_mapping_fn
        )

    def refill_replay(self: Any, env_steps: int) -> None:
        """RLlib compares the setting to all env steps ever, and would learn from four of them."""
        config = self.config.copy(copy_frozen=False)
        config.num_steps_sampled_before_learning_starts += env_steps
        config.freeze()
        self.config = config


class DQNConfig(rllib_dqn.DQNConfig):
    """RLlib's; ``replay_buffer_config`` names RLlib's buffer, of which ours is a subclass."""

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class or DQN)


class SACConfig(rllib_sac.SACConfig):
    """RLlib's; ``replay_buffer_config`` names RLlib's buffer, of which ours is a subclass."""

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class or SAC)


class DQN(_DrawsEveryStep, rllib_dqn.DQN):
    """See `DQNConfig`."""

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        return DQNConfig()


class SAC(_DrawsEveryStep, rllib_sac.SAC):
    """See `SACConfig`."""

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        return SACConfig()
