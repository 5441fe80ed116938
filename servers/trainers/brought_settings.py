"""Names of settings in other libraries, and what they are called here.

People bring such names from RLlib's old API, EPyMARL and stable-baselines3.
"""

from __future__ import annotations

from collections.abc import Collection

_EPSILON = ("epsilon", "exploration_noise")
_LR = ("lr", "actor_lr")

_OLD_NAMES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("batch_size_episodes", "batch_size_steps", "train_batch_size_per_learner"): ("batch_size",),
    ("simulation.num_envs_per_process",): (
        "batch_size_run",
        "num_envs_per_env_runner",
        "num_envs_per_worker",
    ),
    ("buffer_capacity_episodes", "buffer_capacity_steps", "replay_buffer_config.capacity"): (
        "buffer_size",
        "capacity",
    ),
    ("clip_param",): ("clip_range", "eps_clip"),
    ("server.team_reward",): ("common_reward",),
    ("critic_lr",): ("critic_learning_rate", "q_lr"),
    ("entropy_coeff", "initial_alpha"): ("ent_coef",),
    ("entropy_coeff",): ("entropy_coef", "entropy_coeff_schedule"),
    ("simulation.env",): ("env",),
    ("simulation.kwargs",): ("env_args", "env_config"),
    ("num_epochs",): ("epochs", "n_epochs", "num_sgd_iter"),
    _EPSILON: (
        "epsilon_anneal_time",
        "epsilon_finish",
        "epsilon_start",
        "epsilon_timesteps",
        "exploration_config",
        "exploration_final_eps",
        "exploration_fraction",
        "exploration_initial_eps",
        "final_epsilon",
        "initial_epsilon",
    ),
    ("evaluation.interval_env_steps",): ("evaluation_interval", "test_interval"),
    ("model.fcnet_hiddens", "hidden_dim"): ("fcnet_hiddens", "hidden_dim", "hiddens"),
    ("lambda_",): ("gae_lambda", "lambda"),
    ("grad_clip",): ("grad_norm_clip", "max_grad_norm"),
    ("updates_per_step", "updates_per_episode", "training_intensity"): ("gradient_steps",),
    _LR: ("learning_rate", "lr", "lr_schedule"),
    (
        "num_steps_sampled_before_learning_starts",
        "num_episodes_before_learning",
        "num_steps_before_learning",
    ): ("learning_starts",),
    ("server.model", "hidden_dim"): ("model", "policy_kwargs"),
    ("simulation.num_processes",): (
        "n_envs",
        "num_env_runners",
        "num_rollout_workers",
        "num_workers",
        "runner",
    ),
    ("train_batch_size_per_learner",): ("n_steps",),
    ("simulation.num_cpus",): ("num_cpus_per_worker",),
    ("server.resources.num_gpus",): ("num_gpus", "num_gpus_per_learner", "use_cuda"),
    ("server.normalize_observations",): ("observation_filter",),
    ("rmsprop_alpha",): ("optim_alpha",),
    ("optimizer_epsilon",): ("optim_eps",),
    ("optimizer_name",): ("optimizer",),
    ("server.policies",): ("policies",),
    ("actor_lr",): ("policy_lr",),
    ("n_step",): ("q_nstep",),
    ("hidden_dim", "model.lstm_cell_size"): ("rnn_hidden_dim",),
    ("seed",): ("seed",),
    ("minibatch_size",): ("sgd_minibatch_size",),
    ("normalize_values",): ("standardise_returns",),
    ("standardize_rewards", "center_rewards", "server.normalize_rewards"): ("standardise_rewards",),
    ("stop.env_steps",): ("t_max", "total_timesteps"),
    ("target_update_freq", "tau"): ("target_network_update_freq",),
    ("target_update_freq", "target_network_update_freq", "tau"): (
        "target_update_interval",
        "target_update_interval_or_tau",
    ),
    ("evaluation.num_episodes",): ("test_nepisode",),
    ("min_sample_timesteps_per_iteration",): ("timesteps_per_iteration",),
    ("batch_size_episodes", "batch_size_steps"): ("train_batch_size",),
    ("rollout_fragment_length",): ("train_freq",),
    ("agent", "model.use_lstm"): ("use_rnn",),
    ("vf_loss_coeff",): ("vf_coef",),
    ("model.vf_share_layers",): ("vf_share_layers",),
}
"""By the places where a setting may be here: its names elsewhere. Of several places the first that
an algorithm has is meant."""
_PLACES = {name: places for places, names in _OLD_NAMES.items() for name in names}
_LISTS = frozenset({*_EPSILON, "entropy_coeff", *_LR})
"""Settings that are, or may be, schedules."""
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
"""Settings of RLlib's algorithms that are of no use to muxrl's own algorithms of these names."""
_OUTSIDE = ("simulation.", "stop.", "evaluation.", "seed")


def where_it_went(
    name: str, settings: Collection[str], model: Collection[str], at: str = ""
) -> str:
    """Returns what a setting is called here, as the end of a sentence; "": unknown.

    Args:
        name: the setting, as it was given.
        settings: names of the algorithm's settings.
        model: names of its network settings.
        at: where its settings belong, if the name was given elsewhere.
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
    if settings and _PLACES.get(name) is _EPSILON:  # the algorithm has no epsilon or noise
        name = "action_selector"
    return f"; leave it out: {_GONE[name]}" if name in _GONE else ""
