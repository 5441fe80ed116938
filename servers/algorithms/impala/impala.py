"""IMPALA and APPO on a policy server: RLlib's losses and networks, without RLlib's asynchrony.

RLlib's IMPALA samples, batches and learns in separate processes and threads, so that none of them
waits. A policy server does so already: it serves while it learns, and V-trace corrects for samples
of older weights. RLlib's asynchrony on top would only add lag (weights come one update late, after
every second update) and a third thread. Here a batch is learned when it arrives, and the new
weights are in use at once.

IMPALA: Espeholt et al. 2018 (arXiv 1802.01561). APPO, as RLlib has it, is IMPACT: Luo et al. 2020
(arXiv 1912.00167), PPO's clipped ratio against a target policy, with V-trace.
"""

from __future__ import annotations

from typing import Any

from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.appo import appo as rllib_appo
from ray.rllib.algorithms.impala import impala as rllib_impala

from muxrl.servers.algorithms.impala.learner import APPOLearner, IMPALALearner


def _run_in_place(config: rllib_impala.IMPALAConfig) -> None:
    """Makes the learner a part of this process."""
    config.num_learners = 0
    config.num_env_runners = 0
    config.use_env_runner_state_server = False
    # RLlib compares this to its count of steps since it last sent weights before it raises that
    # count, so that 1 would be every second step.
    config.broadcast_interval = 0
    config.min_time_s_per_iteration = None
    config.min_sample_timesteps_per_iteration = 1_000


class IMPALAConfig(rllib_impala.IMPALAConfig):
    """RLlib's, run in this process.

    ``train_batch_size_per_learner`` is the number of env steps between two updates;
    ``rollout_fragment_length`` the number of steps after which V-trace begins anew from the
    value function.
    """

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class or IMPALA)
        _run_in_place(self)

    def get_default_learner_class(self) -> type:
        return IMPALALearner


class APPOConfig(rllib_appo.APPOConfig):
    """RLlib's, run in this process.

    ``circular_buffer_iterations_per_batch`` is the number of updates on each batch;
    ``target_network_update_freq`` the number of batches between updates of the target policy.
    """

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class or APPO)
        _run_in_place(self)
        # Batches are learned as they come; more would only lengthen the target's interval.
        self.circular_buffer_num_batches = 1

    def get_default_learner_class(self) -> type:
        return APPOLearner


class _WholeBatches:
    """Makes each `sample()` of the server's env runner one train batch, of whatever length."""

    def _pre_queue_episode_refs(self, episode_refs: list[Any], package_size: int) -> list[Any]:
        return [[ref] for ref in episode_refs]


class IMPALA(_WholeBatches, rllib_impala.IMPALA):
    """See `IMPALAConfig`."""

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        return IMPALAConfig()


class APPO(_WholeBatches, rllib_appo.APPO):
    """See `APPOConfig`."""

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        return APPOConfig()
