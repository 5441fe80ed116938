"""Settings as other libraries call them, and what they are called here.

People bring them from RLlib's old API, EPyMARL and stable-baselines3.
"""

from __future__ import annotations

from collections.abc import Collection

_CAPACITY = (
    "buffer_capacity_episodes",
    "buffer_capacity_steps",
    "replay_buffer_config.capacity",
)
_EPSILON = ("epsilon", "exploration_noise")
_EVALUATION = ("evaluation.interval_env_steps",)
_GPUS = ("server.resources.num_gpus",)
_HIDDEN = ("model.fcnet_hiddens", "hidden_dim")
_LR = ("lr", "actor_lr")
_TARGETS = ("target_update_freq", "target_network_update_freq", "tau")
_PROCESSES = ("simulation.num_processes",)

_PLACES: dict[str, tuple[str, ...]] = {
    "batch_size": ("batch_size_episodes", "batch_size_steps", "train_batch_size_per_learner"),
    "batch_size_run": ("simulation.num_envs_per_process",),
    "buffer_size": _CAPACITY,
    "capacity": _CAPACITY,
    "clip_range": ("clip_param",),
    "common_reward": ("server.team_reward",),
    "critic_learning_rate": ("critic_lr",),
    "ent_coef": ("entropy_coeff", "initial_alpha"),
    "entropy_coef": ("entropy_coeff",),
    "entropy_coeff_schedule": ("entropy_coeff",),
    "env": ("simulation.env",),
    "env_args": ("simulation.kwargs",),
    "env_config": ("simulation.kwargs",),
    "epochs": ("num_epochs",),
    "eps_clip": ("clip_param",),
    "epsilon_anneal_time": _EPSILON,
    "epsilon_finish": _EPSILON,
    "epsilon_start": _EPSILON,
    "epsilon_timesteps": _EPSILON,
    "evaluation_interval": _EVALUATION,
    "exploration_config": _EPSILON,
    "exploration_final_eps": _EPSILON,
    "exploration_fraction": _EPSILON,
    "exploration_initial_eps": _EPSILON,
    "fcnet_hiddens": _HIDDEN,
    "final_epsilon": _EPSILON,
    "gae_lambda": ("lambda_",),
    "grad_norm_clip": ("grad_clip",),
    "gradient_steps": ("updates_per_step", "updates_per_episode", "training_intensity"),
    "hidden_dim": _HIDDEN,
    "hiddens": _HIDDEN,
    "initial_epsilon": _EPSILON,
    "lambda": ("lambda_",),
    "learning_rate": _LR,
    "learning_starts": (
        "num_steps_sampled_before_learning_starts",
        "num_episodes_before_learning",
        "num_steps_before_learning",
    ),
    "lr": _LR,
    "lr_schedule": _LR,
    "max_grad_norm": ("grad_clip",),
    "model": ("server.model", "hidden_dim"),
    "n_envs": _PROCESSES,
    "n_epochs": ("num_epochs",),
    "n_steps": ("train_batch_size_per_learner",),
    "num_cpus_per_worker": ("simulation.num_cpus",),
    "num_env_runners": _PROCESSES,
    "num_envs_per_env_runner": ("simulation.num_envs_per_process",),
    "num_envs_per_worker": ("simulation.num_envs_per_process",),
    "num_gpus": _GPUS,
    "num_gpus_per_learner": _GPUS,
    "num_rollout_workers": _PROCESSES,
    "num_sgd_iter": ("num_epochs",),
    "num_workers": _PROCESSES,
    "observation_filter": ("server.normalize_observations",),
    "optim_alpha": ("rmsprop_alpha",),
    "optim_eps": ("optimizer_epsilon",),
    "optimizer": ("optimizer_name",),
    "policies": ("server.policies",),
    "policy_kwargs": ("server.model", "hidden_dim"),
    "policy_lr": ("actor_lr",),
    "q_lr": ("critic_lr",),
    "q_nstep": ("n_step",),
    "rnn_hidden_dim": ("hidden_dim", "model.lstm_cell_size"),
    "runner": _PROCESSES,
    "seed": ("seed",),
    "sgd_minibatch_size": ("minibatch_size",),
    "standardise_returns": ("normalize_values",),
    "standardise_rewards": ("standardize_rewards", "center_rewards", "server.normalize_rewards"),
    "t_max": ("stop.env_steps",),
    "target_network_update_freq": ("target_update_freq", "tau"),
    "target_update_interval": _TARGETS,
    "target_update_interval_or_tau": _TARGETS,
    "test_interval": _EVALUATION,
    "test_nepisode": ("evaluation.num_episodes",),
    "timesteps_per_iteration": ("min_sample_timesteps_per_iteration",),
    "total_timesteps": ("stop.env_steps",),
    "train_batch_size": ("batch_size_episodes", "batch_size_steps"),
    "train_freq": ("rollout_fragment_length",),
    "use_cuda": _GPUS,
    "use_rnn": ("agent", "model.use_lstm"),
    "vf_coef": ("vf_loss_coeff",),
    "vf_share_layers": ("model.vf_share_layers",),
}
"""Old name to where it may be now; the first place that an algorithm has, is the one."""
_LISTS = frozenset({*_EPSILON, "entropy_coeff", *_LR})
"""Settings that are schedules, or may be."""
_SCHEDULES = ("anneal", "epsilon", "_eps", "exploration", "schedule")
_GONE = {
    "action_selector": "its exploration is the algorithm's own",
    "agent_output_type": "the algorithm's name says it",
    "explore": "training explores, and evaluation.should_explore decides for evaluations",
    "framework": "its networks are torch's",
    "horizon": "the simulation truncates its episodes",
    "learner": "the algorithm's name says it",
    "mac": "the algorithm's name says it",
    "optimizer": "its optimizer is Adam",
    "use_gae": "its advantages are always GAE's",
}
OF_RLLIB = frozenset(
    {
        "adam_epsilon",
        "broadcast_interval",
        "burn_in_len",
        "categorical_distribution_temperature",
        "circular_buffer_num_batches",
        "clip_actions",
        "learner_queue_size",
        "learner_queue_timeout",
        "log_gradients",
        "max_requests_in_flight_per_aggregator_worker",
        "metrics_num_episodes_for_smoothing",
        "momentum",
        "noisy",
        "num_aggregation_workers",
        "num_aggregator_actors_per_learner",
        "num_gpu_loader_threads",
        "num_learners",
        "opt_type",
        "policy_model_config",
        "q_model_config",
        "replay_proportion",
        "sigma0",
        "simple_queue_size",
        "store_buffer_in_checkpoints",
        "timeout_s_aggregator_manager",
        "timeout_s_sampler_manager",
        "use_circular_buffer",
        "vtrace",
    }
)
"""Settings of RLlib's algorithms that muxrl's own ones of these names have no use for."""
_OUTSIDE = ("simulation.", "stop.", "evaluation.", "seed")


def where_it_went(
    name: str, settings: Collection[str], model: Collection[str], at: str = ""
) -> str:
    """Returns what a setting is called here, as the end of a sentence; "": nobody knows.

    Args:
        name: as it was given.
        settings: those that the algorithm has.
        model: its network settings.
        at: where its settings stand, if the name came elsewhere.
    """
    for place in _PLACES.get(name, ()):
        head, _, key = place.partition(".")
        if place.startswith(_OUTSIDE):
            return f"; it is the experiment's {place} here"
        if head == "server" and (key != "model" or model):
            return f"; it is {key!r} of the server here, outside of its settings"
        if head == "model" and key in model:
            return f"; it is {key!r} of the server's model here"
        if head in settings:
            is_schedule = head in _LISTS and any(part in name for part in _SCHEDULES)
            form = ", as [[0, first value], [env steps, last value]]" if is_schedule else ""
            return f"; it is {place!r} here{form}" + (f", and belongs at {at}" if at else "")
    if settings and _PLACES.get(name) is _EPSILON:  # of an algorithm that has none
        name = "action_selector"
    return f"; leave it out: {_GONE[name]}" if name in _GONE else ""
