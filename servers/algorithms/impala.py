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

import torch
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.appo import appo as rllib_appo
from ray.rllib.algorithms.appo.torch.appo_torch_learner import APPOTorchLearner
from ray.rllib.algorithms.appo.torch.default_appo_torch_rl_module import (
    DefaultAPPOTorchRLModule,
)
from ray.rllib.algorithms.impala import impala as rllib_impala
from ray.rllib.algorithms.impala.torch.impala_torch_learner import IMPALATorchLearner
from ray.rllib.core import COMPONENT_RL_MODULE
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.learner import Learner
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.core.rl_module.apis import TARGET_NETWORK_ACTION_DIST_INPUTS
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO
from torch import Tensor

from muxrl.servers.algorithms.action_masks import MaskablePPOTorchRLModule, masked, unmasked
from muxrl.servers.algorithms.entry import AlgorithmEntry
from muxrl.servers.algorithms.networks import Networks
from muxrl.servers.algorithms.settings import TrainingSettings
from muxrl.servers.algorithms.sound_updates import SoundUpdates
from muxrl.servers.seating import Seating


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


class MaskableAPPOTorchRLModule(MaskablePPOTorchRLModule, DefaultAPPOTorchRLModule):
    """RLlib's default module of APPO, which follows masks; its target policy, too."""

    def forward_target(self, batch: dict[str, Any]) -> dict[str, Any]:
        """RLlib's, with the logits of unavailable actions masked."""
        outputs = super().forward_target(unmasked(batch))
        key = TARGET_NETWORK_ACTION_DIST_INPUTS
        return {**outputs, key: masked(outputs[key], batch)}


class IMPALALearner(SoundUpdates, IMPALATorchLearner):
    """IMPALA's loss, with V-trace; updates in the calling thread, which RLlib leaves to another.

    V-trace keeps its bootstrap values. RLlib appends a step to every chunk whose value stands for
    all that was cut off, but computes that step's own correction with a discount of 0, so that
    ``vs = V + rho * (0 - V)``, which is 0 with rho = 1, and nothing is bootstrapped at cuts and
    time limits. Here an infinite behaviour probability makes that step's rho exactly 0, however
    dense the policy is, and ``vs = V``, as the paper has it for the last state (Espeholt et al.
    2018, section 4.1).
    """

    def build(self) -> None:
        super().build()
        self.shutdown()  # the learner thread, before it has seen anything
        # At the interpreter's exit RLlib stops it again if it is still set, and APPO's buffer
        # raises when it is stopped twice.
        self._learner_thread = None

    def update(
        self,
        training_data: TrainingData,
        *,
        timesteps: dict[str, Any],
        return_state: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Learns a batch and returns metrics and, if asked for, the new weights."""
        training_data.solve_refs()
        batch = self._make_batch_if_necessary(training_data=training_data)
        results: dict[str, Any] = {}
        # Of APPO alone: K of the paper's circular buffer.
        num_updates = getattr(self.config, "circular_buffer_iterations_per_batch", 1)
        for i in range(num_updates):
            results = Learner.update(
                self,
                training_data=TrainingData(batch=batch),
                timesteps=timesteps,
                _no_metrics_reduce=i < num_updates - 1,
                **kwargs,
            )
        if return_state:
            state = self.get_state(
                components=[
                    f"{COMPONENT_RL_MODULE}/{module_id}"
                    for module_id in self.module.keys()  # noqa: SIM118
                    if self.should_module_be_updated(module_id)
                ],
                inference_only=True,
            )
            results["_rl_module_state_after_update"] = {
                COMPONENT_RL_MODULE: state[COMPONENT_RL_MODULE],
                WEIGHTS_SEQ_NO: state[WEIGHTS_SEQ_NO],
            }
        return results

    def compute_loss_for_module(self, *, batch: dict[str, Any], **kwargs: Any) -> Tensor:
        """RLlib's loss with its bootstrap values kept, as above."""
        logp, mask = batch[Columns.ACTION_LOGP], batch[Columns.LOSS_MASK]
        batch = {**batch, Columns.ACTION_LOGP: logp.masked_fill(~mask.bool(), torch.inf)}
        return super().compute_loss_for_module(batch=batch, **kwargs)


class APPOLearner(IMPALALearner, APPOTorchLearner):
    """APPO's loss, with V-trace."""


# Still among the arguments of `training()`, but of RLlib's old API.
_OLD = frozenset(
    {
        "decay",
        "epsilon",
        "lambda_",
        "max_requests_in_flight_per_aggregator_worker",
        "minibatch_buffer_size",
        "minibatch_size",
        "momentum",
        "num_aggregation_workers",
        "num_epochs",
        "num_multi_gpu_tower_stacks",
        "opt_type",
        "replay_buffer_num_slots",
        "replay_proportion",
        "shuffle_batch_per_epoch",
        "target_update_frequency",
        "target_worker_clipping",
        "use_critic",
        "vtrace",
    }
)
# Of the processes and threads that RLlib's IMPALA has, and a server has not.
_ASYNCHRONOUS = frozenset(
    {
        "broadcast_interval",
        "circular_buffer_num_batches",
        "learner_queue_size",
        "learner_queue_timeout",
        "num_gpu_loader_threads",
        "simple_queue_size",
        "timeout_s_aggregator_manager",
        "timeout_s_sampler_manager",
        "use_circular_buffer",
    }
)

IMPALA_ENTRY = AlgorithmEntry(
    name="IMPALA",
    summary="actor-critic corrected for lag by V-trace (Espeholt et al. 2018)",
    learns_from="recent",
    training=TrainingSettings(IMPALAConfig, unused=_OLD | _ASYNCHRONOUS),
    networks=Networks(module=MaskablePPOTorchRLModule),
    seating=Seating(follows_masks=True),
)
APPO_ENTRY = AlgorithmEntry(
    name="APPO",
    summary="PPO's ratio against a target policy, with V-trace (Luo et al. 2020)",
    learns_from="recent",
    training=TrainingSettings(APPOConfig, unused=_OLD | _ASYNCHRONOUS),
    networks=Networks(module=MaskableAPPOTorchRLModule),
    seating=Seating(follows_masks=True),
)
