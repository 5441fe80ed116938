"""IMPALA and APPO on a server."""

from __future__ import annotations

from muxrl.servers.algorithms.entry import AlgorithmEntry
from muxrl.servers.algorithms.impala.impala import APPOConfig, IMPALAConfig
from muxrl.servers.algorithms.settings import TrainingSettings

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

IMPALA = AlgorithmEntry(
    name="IMPALA",
    summary="actor-critic corrected for lag by V-trace (Espeholt et al. 2018)",
    learns_from="recent",
    training=TrainingSettings(IMPALAConfig, unused=_OLD | _ASYNCHRONOUS),
)
APPO = AlgorithmEntry(
    name="APPO",
    summary="PPO's ratio against a target policy, with V-trace (Luo et al. 2020)",
    learns_from="recent",
    training=TrainingSettings(APPOConfig, unused=_OLD | _ASYNCHRONOUS),
)
