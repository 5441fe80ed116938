"""The settings of each side, for each algorithm and setting.

This module imports nothing, as two interpreters with different packages read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NUM_ENVS = 10  # BenchMARL's default
EPISODE_STEPS = 25
BATCH_ENV_STEPS = NUM_ENVS * EPISODE_STEPS
ENV_STEPS = 36_000

OURS, THEIRS = "muxrl", "benchmarl"
NORMALIZED, TWO_LAYER = "muxrl_normalized_values", "benchmarl_two_layer"
SIDES = {
    OURS: "muxrl",
    NORMALIZED: "muxrl, values normalised as in the paper",
    THEIRS: "BenchMARL",
    TWO_LAYER: "BenchMARL, two-layer hypernetworks",
}
"""By side: its name in tables and pictures."""
OF_OURS: dict[str, dict[str, Any]] = {
    OURS: {},
    NORMALIZED: {"normalize_values": True, "huber_delta": 10.0, "vf_clip_param": 0.2},
}
"""By side of muxrl: settings in addition to those of a `Setting`."""

_TEAM = {
    "groups": {"team": ["agent_*"]},
    "team_reward": "mean",  # the unit in which BenchMARL learns
}


@dataclass(frozen=True)
class Setting:
    """Values that differ from the defaults of either side."""

    sides: tuple[str, ...] = (OURS, THEIRS)
    ours: Mapping[str, Any] = field(default_factory=dict)
    """`settings` of a `ServerConfig`."""
    experiment: Mapping[str, Any] = field(default_factory=dict)
    """Fields of BenchMARL's `ExperimentConfig`."""
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    """Fields of BenchMARL's config of the algorithm."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """Fields of BenchMARL's `MlpConfig`; a class of torch.nn is given by its name."""


@dataclass(frozen=True)
class Case:
    """One algorithm."""

    name: str
    """Name of the algorithm in muxrl; in small letters it is BenchMARL's."""
    settings: Mapping[str, Setting]
    has_continuous_actions: bool = False
    is_on_policy: bool = False
    """Whether the policy is also measured with sampled actions, beside its likeliest ones."""
    server: Mapping[str, Any] = field(default_factory=lambda: dict(_TEAM))
    """Further fields of a `ServerConfig`."""


_QMIX = Case(
    "QMIX",
    {
        "default": Setting(),
        "matched": Setting(
            sides=(OURS, THEIRS, TWO_LAYER),
            ours={
                "agent": "mlp",
                "obs_agent_id": False,
                "obs_last_action": False,
                "double_q": False,
                "optimizer_name": "adam",
                "epsilon": [[0, 1.0], [30_000, 0.05]],
                "num_episodes_before_learning": 10,
                "updates_per_episode": 2.0,
            },
            experiment={
                "lr": 0.0005,
                "adam_eps": 0.00001,
                "clip_grad_val": 10.0,
                "soft_target_update": False,
                "hard_target_update_frequency": 200,
                "exploration_eps_init": 1.0,
                "exploration_eps_end": 0.05,
                "exploration_anneal_frames": 30_000,
                "off_policy_collected_frames_per_batch": BATCH_ENV_STEPS,
                "off_policy_n_optimizer_steps": 2 * NUM_ENVS,
                "off_policy_train_batch_size": 32 * EPISODE_STEPS,
                "off_policy_memory_size": 5_000 * EPISODE_STEPS,
            },
            model={"num_cells": [64, 64], "activation_class": "ReLU"},
        ),
    },
)

# muxrl has default networks in both: two tanh layers of 256, as in BenchMARL.
_MAPPO = Case(
    "MAPPO",
    {
        "default": Setting(sides=(OURS, NORMALIZED, THEIRS)),
        "matched": Setting(
            ours={
                "agent_specific_state": False,
                "normalize_values": False,
                "huber_delta": None,
                "vf_clip_param": None,
                "vf_loss_coeff": 2.0,  # muxrl takes half the squared error, BenchMARL the whole
                "minibatch_size": 3 * 250,  # in agent steps; BenchMARL counts the team's steps
            },
            experiment={
                "lr": 0.0007,
                "adam_eps": 0.00001,
                "clip_grad_val": 10.0,
                "on_policy_collected_frames_per_batch": 1_000,
                "on_policy_n_minibatch_iters": 10,
                "on_policy_minibatch_size": 250,
            },
            algorithm={"lmbda": 0.95, "entropy_coef": 0.01},
        ),
    },
    is_on_policy=True,
    # No groups: each agent learns from its own reward, as in BenchMARL.
    server={},
)

# Settings that MASAC and MADDPG share.
_OUR_CRITICS = {
    "actor_lr": 0.0005,
    "critic_lr": 0.0005,
    "obs_agent_id": False,
    "num_steps_before_learning": BATCH_ENV_STEPS,
    "rollout_fragment_length": BATCH_ENV_STEPS,
    "updates_per_step": 0.2,
}
_THEIR_CRITICS = {
    "lr": 0.0005,
    "adam_eps": 0.00000001,  # as in torch and muxrl
    "clip_grad_val": 10.0,
    "off_policy_collected_frames_per_batch": BATCH_ENV_STEPS,
    "off_policy_n_optimizer_steps": BATCH_ENV_STEPS // 5,
    "off_policy_train_batch_size": 256,
    "off_policy_memory_size": 100_000,
}
_THEIR_MODEL = {"num_cells": [128, 128], "activation_class": "ReLU"}

_MASAC = Case(
    "MASAC",
    {
        "default": Setting(),
        "matched": Setting(
            ours={
                **_OUR_CRITICS,
                "alpha_lr": 0.0005,
                # BenchMARL weighs the members' mean entropy, muxrl their sum.
                "initial_alpha": 1.0 / 3.0,
                # Its -5 is for actions in 0..1: 5 log 2 less than the same entropy in -1..1.
                "target_entropy": -1.534,
            },
            experiment=_THEIR_CRITICS,
            algorithm={"scale_mapping": "exp"},
            model=_THEIR_MODEL,
        ),
    },
    has_continuous_actions=True,
)

_MADDPG = Case(
    "MADDPG",
    {
        "default": Setting(),
        "matched": Setting(
            ours={
                **_OUR_CRITICS,
                "twin_critics": False,
                "policy_delay": 1,
                "target_noise": 0.0,
                "exploration_noise": [[0, 0.5], [10_000, 0.1]],
            },
            experiment={
                **_THEIR_CRITICS,
                # Half of ours: for actions in 0..1.
                "exploration_eps_init": 0.25,
                "exploration_eps_end": 0.05,
                "exploration_anneal_frames": 10_000,
            },
            model=_THEIR_MODEL,
        ),
    },
    has_continuous_actions=True,
)

CASES = {case.name.lower(): case for case in (_QMIX, _MAPPO, _MASAC, _MADDPG)}
SETTINGS = ("default", "matched")
