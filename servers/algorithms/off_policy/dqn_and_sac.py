"""DQN and SAC: RLlib's algorithms and losses, on replay buffers that draw every stored step.

DQN: Mnih et al. 2015; its n-step returns as in Rainbow, Hessel et al. 2018 (arXiv 1710.02298).
SAC: Haarnoja et al. 2018 (arXiv 1801.01290).
"""

from __future__ import annotations

from typing import Any

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
    """An algorithm whose replay is one of `step_replay`."""

    def _create_local_replay_buffer_if_necessary(self, config: AlgorithmConfig) -> Any:
        arguments = dict(config.replay_buffer_config)
        if arguments.pop("type") == PRIORITIZED:
            return EveryStepPrioritizedEpisodeReplayBuffer(**arguments)
        return EveryStepEpisodeReplayBuffer(**arguments)


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
