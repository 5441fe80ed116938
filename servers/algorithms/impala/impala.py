"""IMPALA and APPO on a policy server: RLlib's losses and networks, without RLlib's asynchrony.

RLlib's IMPALA samples, batches and learns in processes and threads of their own, so that nobody
waits. A policy server has that already: it goes on serving while a batch is learnt, and V-trace
corrects for the weights that were newer by then. What RLlib adds on top of it would only add lag
(weights are one update late and sent after every second one) and a third thread. So here a batch
is learnt when it arrives, and its weights are in use when that is done.

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
    """Sets what makes the learner, and its weights, part of this process."""
    config.num_learners = 0
    config.num_env_runners = 0
    config.use_env_runner_state_server = False
    # RLlib sends weights once its count of steps since the last time, taken before it is raised,
    # has reached this: 1 is every second step.
    config.broadcast_interval = 0
    config.min_time_s_per_iteration = None
    config.min_sample_timesteps_per_iteration = 1_000


class IMPALAConfig(rllib_impala.IMPALAConfig):
    """RLlib's, run in place; see the module.

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
    """RLlib's, run in place; see the module.

    ``circular_buffer_iterations_per_batch`` is the number of updates on each batch, and the
    target policy follows after ``target_network_update_freq`` batches of them.
    """

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class or APPO)
        _run_in_place(self)
        # Batches are learnt as they come; more than one would only stretch the target's interval.
        self.circular_buffer_num_batches = 1

    def get_default_learner_class(self) -> type:
        return APPOLearner


class _WholeBatches:
    """One `sample()` of the server's env runner is one train batch, however long its episodes."""

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
