"""The algorithms a policy server can train, by name.

A new algorithm is one more `AlgorithmEntry` in `ALGORITHMS`; what an entry says is in `entry`.
"""

from __future__ import annotations

from collections.abc import Mapping

from gymnasium import spaces

from muxrl.protocol.suggestions import did_you_mean
from muxrl.servers.algorithms.a2c import A2CConfig
from muxrl.servers.algorithms.action_masks import MaskablePPOTorchRLModule
from muxrl.servers.algorithms.dqn import DQNConfig, SACConfig
from muxrl.servers.algorithms.entry import AlgorithmEntry
from muxrl.servers.algorithms.impala import APPOConfig, IMPALAConfig
from muxrl.servers.algorithms.mappo import MAPPOConfig
from muxrl.servers.algorithms.mappo.rl_module import MAPPOTorchRLModule
from muxrl.servers.algorithms.ppo import PPOConfig
from muxrl.servers.algorithms.qmix.config import QMIXConfig
from muxrl.servers.algorithms.replay_settings import read_replay_buffer, replay_buffer
from muxrl.servers.algorithms.settings import AlgorithmProblem, read_count
from muxrl.servers.fixed_policies import FIXED

__all__ = ["ALGORITHMS", "AlgorithmEntry", "AlgorithmProblem", "get_algorithm"]

_PPO_ONLY = frozenset(
    {
        "clip_param",
        "kl_coeff",
        "kl_target",
        "minibatch_size",
        "num_epochs",
        "shuffle_batch_per_epoch",
        "use_critic",
        "use_kl_loss",
        "vf_clip_param",
    }
)
_NOT_QMIX = frozenset(
    {
        "grad_clip_by",
        "minibatch_size",
        "num_epochs",
        "rollout_fragment_length",
        "shuffle_batch_per_epoch",
        "train_batch_size",
        "train_batch_size_per_learner",
    }
)
# Of RLlib's old API, whose names are still among the arguments of `training()`.
_OLD_OFF_POLICY = frozenset(
    {
        "adam_epsilon",
        "before_learn_on_batch",
        "burn_in_len",
        "categorical_distribution_temperature",
        "clip_actions",
        "hiddens",
        "noisy",
        "optimization_config",
        "policy_model_config",
        "q_model_config",
        "sigma0",
        "store_buffer_in_checkpoints",
    }
)
# The first line is of RLlib's old API, the others of the processes and threads that IMPALA has
# there and not here.
_OLD_OR_ASYNCHRONOUS = frozenset(
    {
        *("decay", "epsilon", "minibatch_buffer_size", "momentum", "opt_type", "replay_proportion"),
        *("replay_buffer_num_slots", "num_multi_gpu_tower_stacks"),
        *("broadcast_interval", "learner_queue_size", "learner_queue_timeout"),
        *("num_gpu_loader_threads", "timeout_s_aggregator_manager", "timeout_s_sampler_manager"),
        *("circular_buffer_num_batches", "simple_queue_size", "use_circular_buffer"),
        *("minibatch_size", "num_epochs", "shuffle_batch_per_epoch", "vtrace", "lambda_"),
        *("max_requests_in_flight_per_aggregator_worker", "num_aggregation_workers"),
        *("target_update_frequency", "target_worker_clipping", "use_critic"),
    }
)
# Once per minibatch, and a replay draws one.
_NO_EPOCHS = frozenset({"minibatch_size", "num_epochs", "shuffle_batch_per_epoch"})
_NO_LSTM = {
    "use_lstm": "RLlib's replay for several agents draws single steps, which a recurrent network "
    "cannot learn from; use PPO, A2C or QMIX"
}


def _team_entry(name: str, mixer: str | None, summary: str) -> AlgorithmEntry:
    return AlgorithmEntry(
        name=name,
        config_class=QMIXConfig,
        learns_from="replay",
        needs_teams=True,
        samples_actions=False,
        summary=summary,
        preset={} if mixer is None else {"mixer": mixer},
        not_settings=_NOT_QMIX,
    )


ALGORITHMS: tuple[AlgorithmEntry, ...] = (
    AlgorithmEntry(
        name="PPO",
        config_class=PPOConfig,
        learns_from="newest",
        summary="proximal policy optimisation, RLlib's (Schulman et al. 2017)",
        masked_module=MaskablePPOTorchRLModule,
    ),
    AlgorithmEntry(
        name="A2C",
        config_class=A2CConfig,
        learns_from="newest",
        summary="synchronous advantage actor-critic (Mnih et al. 2016)",
        masked_module=MaskablePPOTorchRLModule,
        not_settings=_PPO_ONLY,
    ),
    AlgorithmEntry(
        name="MAPPO",
        config_class=MAPPOConfig,
        learns_from="newest",
        summary="PPO whose critic sees the global state (Yu et al. 2022)",
        is_central=True,
        masked_module=MAPPOTorchRLModule,
        not_settings=frozenset({"kl_coeff", "kl_target", "use_critic", "use_kl_loss"}),
        not_model_settings={
            "use_lstm": "its critic would need the history of the state, which is not recorded; "
            "use QMIX (agent: gru) or PPO",
            "vf_share_layers": "its actor and its critic do not see the same",
        },
    ),
    AlgorithmEntry(
        name="DQN",
        config_class=DQNConfig,
        learns_from="replay",
        summary="deep Q-learning, with double Q, dueling, n-step, atoms (Mnih et al. 2015)",
        samples_actions=False,
        action_spaces=(spaces.Discrete,),
        instead="PPO, A2C or SAC",
        # One update for every four steps, as in the paper; RLlib's is one for every step.
        defaults={"rollout_fragment_length": 4, "replay_buffer_config": replay_buffer(50_000)},
        not_settings=_OLD_OFF_POLICY | _NO_EPOCHS,
        readers={"replay_buffer_config": read_replay_buffer, "n_step": read_count},
        model_defaults={"fcnet_activation": "relu"},
        not_model_settings=_NO_LSTM,
    ),
    AlgorithmEntry(
        name="SAC",
        config_class=SACConfig,
        learns_from="replay",
        summary="soft actor-critic, continuous or discrete (Haarnoja et al. 2018)",
        action_spaces=(spaces.Discrete, spaces.Box),
        instead="PPO or A2C",
        can_act_unbounded=False,
        defaults={
            "replay_buffer_config": replay_buffer(100_000),
            "min_time_s_per_iteration": None,
            "min_sample_timesteps_per_iteration": 1_000,
        },
        not_settings=_OLD_OFF_POLICY | _NO_EPOCHS | {"lr"},
        readers={"replay_buffer_config": read_replay_buffer, "n_step": read_count},
        # With RLlib's tanh the critic hardly learns how an action's worth depends on what was seen.
        model_defaults={
            "fcnet_activation": "relu",
            "fusionnet_activation": "relu",
            "fusionnet_hiddens": [64, 64],
        },
        not_model_settings=_NO_LSTM,
    ),
    AlgorithmEntry(
        name="IMPALA",
        config_class=IMPALAConfig,
        learns_from="recent",
        summary="actor-critic corrected for lag by V-trace (Espeholt et al. 2018)",
        not_settings=_OLD_OR_ASYNCHRONOUS,
    ),
    AlgorithmEntry(
        name="APPO",
        config_class=APPOConfig,
        learns_from="recent",
        summary="PPO's ratio against a target policy, with V-trace (Luo et al. 2020)",
        not_settings=_OLD_OR_ASYNCHRONOUS,
    ),
    _team_entry("QMIX", None, "monotonic value mixing for teams (Rashid et al. 2018)"),
    _team_entry("VDN", "vdn", "sum of values for teams (Sunehag et al. 2017)"),
    _team_entry("IQL", "none", "independent Q-learning on the team's reward (Tan 1993)"),
)

# RLlib's that are no use here, with the reason.
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("BC", "MARWIL", "CQL"), "learns from recorded data only; use PPO, DQN or SAC"),
    "DREAMERV3": "is for one agent alone in RLlib, and a server's agents are several to it; use "
    "PPO with use_lstm",
}


def get_algorithm(name: str) -> AlgorithmEntry:
    """The entry of that name, in upper or lower case; those that do not learn are `FIXED`.

    Raises:
        AlgorithmProblem: no such algorithm; the message suggests one.
    """
    for entry in ALGORITHMS:
        if entry.name.lower() == name.lower():
            return entry
    if name.upper() in REFUSED:
        raise AlgorithmProblem(f"algorithm {name!r} {REFUSED[name.upper()]}")
    known = [*(entry.name for entry in ALGORITHMS), *(fixed.name for fixed in FIXED)]
    hint = did_you_mean(name, known, most=2)
    raise AlgorithmProblem(f"unknown algorithm {name!r}{hint}; known: {', '.join(known)}")
