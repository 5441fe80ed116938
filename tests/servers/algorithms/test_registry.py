from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from gymnasium import spaces
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo.ppo import PPOConfig

from muxrl.experiments.examples.own_module import SharedTrunk
from muxrl.orchestrator.config.schema import ExperimentConfig
from muxrl.protocol.spaces import Box, Discrete, MultiDiscrete, TupleSpace
from muxrl.servers.agents.seating import Seating
from muxrl.servers.algorithms import brought_settings
from muxrl.servers.algorithms.a2c import A2CConfig
from muxrl.servers.algorithms.mappo import MAPPOConfig
from muxrl.servers.algorithms.qmix import QMIXConfig, TeamSpec
from muxrl.servers.algorithms.registry import (
    AlgorithmProblem,
    get_algorithm,
    own_algorithms,
    seating_of,
)
from muxrl.servers.config import AgentPlan, ServerConfig
from muxrl.servers.fixed_policies import FIXED
from muxrl.servers.gymnasium_spaces import to_gymnasium
from muxrl.servers.trainers.lookup import registered

BOX = Box((4,), "float32", -1.0, 1.0)
DISCRETE = Discrete(3)


@pytest.mark.parametrize("entry", own_algorithms(), ids=lambda entry: entry.name)
def test_every_entry_makes_a_valid_config_of_its_defaults(entry: Any) -> None:
    assert get_algorithm(entry.name.lower()) is entry
    assert entry.default_while_learning == ("wait" if entry.learns_from == "newest" else "serve")
    assert not [name for name in entry.settings() if name.startswith("_")]
    defaults = entry.settings()
    config = entry.make_config(defaults, entry.model_settings())
    config.validate()
    assert type(config) is entry.training.config_class
    for name, value in defaults.items():
        assert getattr(config, name) == value


def test_own_algorithms_are_registered_as_other_packages_are() -> None:
    """By a name of the checkout's, also where its metadata is older than it."""
    assert len(own_algorithms()) == 14
    assert {"PPO", "QMIX", "SB3_DQN"} < set(registered())
    assert list(registered()) == sorted(registered(), key=str.lower)


class OfRLlib(PPOConfig):
    """A variant of RLlib's."""


class OfOurs(MAPPOConfig):
    """A variant of ours."""


class OfNone(AlgorithmConfig):
    pass


@pytest.mark.parametrize(
    ("config", "like", "summary"),
    [
        (OfRLlib, "PPO", "A variant of RLlib's."),
        (OfOurs, "MAPPO", "A variant of ours."),
        (OfNone, "", ""),
    ],
)
def test_a_config_is_a_variant_of_the_nearest_algorithm(
    config: type[AlgorithmConfig], like: str, summary: str
) -> None:
    path = f"{__name__}:{config.__name__}"
    if not like:
        with pytest.raises(AlgorithmProblem, match=r"none of the kinds .* from A2CConfig, APPOC"):
            get_algorithm(path)
        return
    entry, own = get_algorithm(path), get_algorithm(like)
    assert (entry.name, entry.summary, entry.seating) == (path, summary, own.seating)
    assert type(entry.make_config({"lr": 0.5})) is config


def test_what_modules_observe_tells_how_they_were_seated() -> None:
    """It is of at most one kind of seating, so that the order of algorithms is nothing."""
    box, flags = spaces.Box(-1, 1, (3,)), spaces.Box(0, 1, (2,))
    rows = spaces.Box(-1, 1, (2, 3))
    team = {"obs": rows, "state": box, "alive": flags}
    seen = {
        "PPO": {"obs": box, "action_mask": flags},
        "MAPPO": {"obs": box, "state": box},
        "MADDPG": {**team, "action_mask": rows},
        "MASAC": team,
        "QMIX": {**team, "action_mask": rows, "last_action": rows},
    }
    for name, parts in seen.items():
        space = spaces.Dict(parts)
        made = {e.seating.inputs for e in own_algorithms() if e.seating.has_made(space)}
        assert made == {get_algorithm(name).seating.inputs} == {seating_of([space]).inputs}
    assert seating_of([box]) == Seating()


@pytest.mark.parametrize(
    ("name", "actions", "memory"),
    [
        ("PPO", "any", "LSTM"),
        ("HAPPO", "any", ""),
        ("DQN", "discrete", ""),
        ("QMIX", "discrete", "GRU"),
        ("MASAC", "continuous", ""),
    ],
)
def test_what_an_algorithm_takes_is_said_in_a_word(name: str, actions: str, memory: str) -> None:
    entry = get_algorithm(name)
    assert (entry.takes_actions(), entry.memory()) == (actions, memory)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("QMX", "unknown algorithm 'QMX'; did you mean 'QMIX'?; known: "),
        ("a3c", "unknown algorithm 'a3c'; did you mean 'A2C' or 'SAC'?; known: "),
        ("impalla", "unknown algorithm 'impalla'; did you mean 'IMPALA'?; known: "),
        ("TD3", "unknown algorithm 'TD3'; did you mean 'SB3_TD3'?; known: "),
    ],
)
def test_an_unknown_name_is_answered_with_a_known_one(name: str, message: str) -> None:
    with pytest.raises(AlgorithmProblem) as caught:
        get_algorithm(name)
    known = ", ".join([*registered(), *(entry.name for entry in FIXED)])
    assert str(caught.value) == message + known


@pytest.mark.parametrize(
    ("name", "reason"),
    [("CQL", "recorded data only"), ("marwil", "recorded"), ("DreamerV3", "one agent alone")],
)
def test_rllib_algorithms_that_servers_cannot_use_are_refused_with_the_reason(
    name: str, reason: str
) -> None:
    with pytest.raises(AlgorithmProblem, match=reason):
        get_algorithm(name)


def test_settings_reach_the_config() -> None:
    config = get_algorithm("A2C").make_config(
        {"lr": 0.01, "lambda_": 0.9, "train_batch_size_per_learner": 64},
        {"fcnet_hiddens": [32], "use_lstm": True},
    )
    assert isinstance(config, A2CConfig)
    assert (config.lr, config.lambda_, config.train_batch_size_per_learner) == (0.01, 0.9, 64)
    assert config.model_config["fcnet_hiddens"] == [32]
    assert config.model_config["use_lstm"] is True
    assert config.model_config["fcnet_activation"] == "tanh"


def test_the_default_networks_are_small_and_separate() -> None:
    config = get_algorithm("ppo").make_config({}, {})
    assert isinstance(config, PPOConfig)
    assert config.model_config["fcnet_hiddens"] == [64, 64]
    assert config.model_config["fcnet_activation"] == "tanh"
    assert config.model_config["vf_share_layers"] is False


def test_vdn_qplex_and_iql_are_qmix_with_another_mixer() -> None:
    for name, mixer in (
        ("QMIX", "qmix"),
        ("VDN", "vdn"),
        ("QPLEX", "qplex"),
        ("IQL", "none"),
    ):
        config = get_algorithm(name).make_config({"hidden_dim": 32})
        assert isinstance(config, QMIXConfig)
        assert (config.mixer, config.hidden_dim) == (mixer, 32)
        assert config.model_config["mixer"] == mixer


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        ("DQN", {"noisy": True}, "DQN makes no use of 'noisy'"),
        ("DQN", {"target_update": 9}, r"no setting 'target_update'; did you mean 'target_net"),
        ("DQN", {"n_step": [1, 5]}, r"'n_step' must be an integer, got the list \[1, 5\]"),
        (
            "QMIX",
            {"prioritized_replay_alpha": 1.5},
            r"QMIX: prioritized_replay_alpha=1.5 must lie in \[0, 1\]; 0 draws",
        ),
        ("VDN", {"prioritized_replay_beta": -0.1}, r"replay_beta=-0.1 must lie in \[0, 1\]"),
        ("IQL", {"prioritized_replay_eta": None}, "must be a number, got nothing .null."),
        ("QPLEX", {"td_lambda": "9e-1"}, "'9e-1' is text; leave out the quotes: 9e-1$"),
        ("SAC", {"lr": 0.1}, "SAC has no setting 'lr'; it is 'actor_lr' here"),
        ("SAC", {"q_model_config": {}}, "SAC makes no use of 'q_model_config'"),
        ("IMPALA", {"broadcast_interval": 2}, "IMPALA makes no use of 'broadcast_interval'"),
        ("APPO", {"use_circular_buffer": False}, "APPO makes no use of 'use_circular_buffer'"),
        ("APPO", {"num_aggregator_actors_per_learner": 2}, "'num_aggregator_actors_per_learner' "),
        ("DQN", {"replay_buffer_config": 500}, "must be a mapping of keys, got 500"),
        (
            "DQN",
            {"replay_buffer_config": {"type": "PrioritizedEpisodeReplayBuffer"}},
            "several agents; use MultiAgentPrioritizedEpisodeReplayBuffer",
        ),
        (
            "SAC",
            {"replay_buffer_config": {"type": "Reservoir"}},
            "several agents; known: MultiAgentEpisodeReplayBuffer, MultiAgentPrioritized",
        ),
        ("DQN", {"replay_buffer_config": {"capcity": 9}}, "no key 'capcity' .*mean 'capacity'"),
        ("DQN", {"replay_buffer_config": {"capacity": 0}}, "'capacity', must not be 0"),
        ("DQN", {"replay_buffer_config": {"alpha": 0.5}}, "'alpha' .* which MultiAgentPriorit"),
        (
            "DQN",
            {"replay_buffer_config": {"capacity": "1e4"}},
            "must be an integer, but .1e4. is",
        ),
        ("A2C", {"learning_rate": 1}, "A2C has no setting 'learning_rate'; it is 'lr' here"),
        (
            "PPO",
            {"entropy_coef": 1},
            r"PPO has no setting 'entropy_coef'; it is 'entropy_coeff' here",
        ),
        ("QMIX", {"_env": 1}, "QMIX has no setting '_env'"),
        ("QMIX", {"num_learners": 2}, "'num_learners' is not a setting of QMIX for a user"),
        ("PPO", {"log_gradients": True}, "'log_gradients' is not a setting of PPO"),
        (
            "DQN",
            {"metrics_num_episodes_for_smoothing": 9},
            "'metrics_num_episodes_for_smoothing' is not a setting of DQN",
        ),
        ("A2C", {"clip_param": 0.1}, "A2C makes no use of 'clip_param'"),
        ("QMIX", {"train_batch_size": 9}, "'train_batch_size'; it is 'batch_size_episodes' here"),
        ("VDN", {"mixer": "qmix"}, "VDN is QMIXConfig with mixer='vdn'.* use QMIX"),
        ("A2C", {"lr": "1e-3"}, "A2C's setting 'lr' must be a number or a list of .*'1e-3'"),
        ("QMIX", {"double_q": 1}, "QMIX's setting 'double_q' must be true or false, got 1$"),
        ("PPO", {"lr": -0.1}, "PPO: lr=-0.1 must be at least 0$"),
        ("A2C", {"lr": float("nan")}, "A2C: lr=nan must be at least 0$"),
        ("PPO", {"gamma": 1.5}, r"PPO: gamma=1.5 must lie in \[0, 1\]$"),
        ("PPO", {"num_epochs": 0}, "PPO: num_epochs=0 must be a whole number of at least 1$"),
        ("DQN", {"epsilon": [[0, 1.0], [1_000, 2.0]]}, "DQN: epsilon=.* must stay within 0 and 1$"),
        ("DQN", {"epsilon": [[1_000, 1.0], [9_000, 0.1]]}, "DQN: .*first timestep must be 0"),
        ("SAC", {"tau": -1.0}, r"SAC: tau=-1.0 must lie in \[0, 1\]$"),
        ("QMIX", {"tau": -1.0}, r"QMIX: tau=-1.0 must lie in \(0, 1\]"),
        ("QMIX", {"batch_size_episodes": 0}, "QMIX: batch_size_episodes=0 must be a whole number"),
    ],
)
def test_settings_that_users_may_not_give_are_refused(
    algorithm: str, settings: Any, message: str
) -> None:
    with pytest.raises(AlgorithmProblem, match=message):
        get_algorithm(algorithm).make_config(settings, {})


@pytest.mark.parametrize("algorithm", ["PPO", "MAPPO", "HAPPO"])
@pytest.mark.parametrize("num_agents", [1, 3])
def test_a_minibatch_is_of_transitions_of_all_agents_of_a_policy(
    algorithm: str, num_agents: int
) -> None:
    agent = AgentPlan("shared", Box((2,), "float32", -1.0, 1.0), Discrete(2))
    alone = AgentPlan("alone", agent.observation_space, agent.action_space)
    agents = {**{f"a_{i}": agent for i in range(num_agents)}, "b": alone}
    entry = get_algorithm(algorithm)

    def problems(size: int) -> list[str]:
        settings = {"train_batch_size_per_learner": 64, "minibatch_size": size}
        plan: Any = SimpleNamespace(agents=agents, settings=settings, model={}, rl_module="")
        config = entry.make_config(settings)
        config.validate()  # RLlib's own bound is in env steps
        assert config.minibatch_size == size
        return list(entry.find_problems(plan))

    most = 64 * num_agents
    assert problems(most) == []
    (problem,) = problems(most + 1)
    assert f"'minibatch_size' is {most + 1}, but a policy has {most} transitions" in problem


@pytest.mark.parametrize(
    ("algorithm", "brought", "places"),
    [
        (
            "PPO",
            ["lr_schedule", "sgd_minibatch_size", "num_workers", "num_gpus", "model", "use_gae"],
            [
                *("'lr' here, as [[", "'minibatch_size'", "simulation.num_processes"),
                *("'resources.num_gpus' of the server", "'model' of the server", "always GAE's"),
            ],
        ),
        (
            "QMIX",
            ["epsilon_anneal_time", "buffer_size", "use_rnn", "optim_alpha", "model", "t_max"],
            [
                *("'epsilon' here, as [[", "'buffer_capacity_episodes'", "'agent'"),
                *("'rmsprop_alpha'", "'hidden_dim'", "stop.env_steps"),
            ],
        ),
        (
            "SAC",
            ["learning_rate", "ent_coef", "q_lr", "horizon"],
            ["'actor_lr' here", "'initial_alpha'", "'critic_lr' here", "truncates its episodes"],
        ),
        ("VDN", ["batch_size_run", "mac"], ["num_envs_per_process here", "name says it"]),
        ("DQN", ["buffer_size", "optimizer"], ["replay_buffer_config.capacity", "is Adam"]),
        ("A2C", ["lrr", "learning_rate"], ["did you mean 'lr'", "it is 'lr' here"]),
    ],
)
def test_all_brought_settings_are_listed_each_with_its_place(
    algorithm: str, brought: list[str], places: list[str]
) -> None:
    settings = dict.fromkeys(brought, 1)
    problems = list(
        get_algorithm(algorithm).find_config_problems(ServerConfig(algorithm, settings=settings))
    )
    assert len(problems) == len(brought)
    for name, place, problem in zip(brought, places, problems, strict=True):
        assert f"{name!r}" in problem
        assert place in problem


def test_every_place_of_a_brought_setting_is_there() -> None:
    """A place that no algorithm has would be as false as the sentence that it stands in for."""
    settings = {name for entry in own_algorithms() for name in entry.settings()}
    model = {name for entry in own_algorithms() for name in entry.model_settings()}
    experiment = ExperimentConfig(servers={"server": ServerConfig()})
    for place in {place for places in brought_settings._PLACES.values() for place in places}:
        head, *keys = place.split(".")
        if head == "model":
            assert keys[0] in model, place
        elif head in settings:
            assert keys in ([], ["capacity"]), place
        else:
            at: Any = experiment.servers["server"] if head == "server" else experiment
            for key in keys if head == "server" else [head, *keys]:
                at = getattr(at, key)


def test_model_settings_are_checked() -> None:
    with pytest.raises(AlgorithmProblem, match=r"'fcnet_hidden'; did you mean 'fcnet_hiddens'"):
        get_algorithm("PPO").make_config({}, {"fcnet_hidden": [8]})
    with pytest.raises(AlgorithmProblem, match="QMIX has no separate model settings"):
        get_algorithm("QMIX").make_config({}, {"fcnet_hiddens": [8]})


def test_replay_buffer_settings_are_completed_with_defaults() -> None:
    def made(config: Any) -> Any:
        return get_algorithm("DQN").make_config({"replay_buffer_config": config})[
            "replay_buffer_config"
        ]

    prioritized = "MultiAgentPrioritizedEpisodeReplayBuffer"
    assert made({"capacity": 70}) == {"type": "MultiAgentEpisodeReplayBuffer", "capacity": 70}
    assert made({"type": prioritized, "beta": 0.9}) == {
        "type": prioritized,
        "capacity": 50_000,
        "alpha": 0.6,
        "beta": 0.9,
    }


def test_learns_from_decides_the_feed() -> None:
    by_name = {entry.name: entry for entry in own_algorithms()}
    for name in ("PPO", "A2C", "IMPALA", "APPO"):
        assert by_name[name].needs_log_probabilities
        assert not by_name[name].fills_replay_by_agent
    for name in ("DQN", "SAC"):
        assert by_name[name].fills_replay_by_agent
        assert not by_name[name].needs_log_probabilities
    assert not by_name["QMIX"].fills_replay_by_agent
    assert by_name["IMPALA"].default_while_learning == "serve"
    assert {name for name, entry in by_name.items() if not entry.samples_actions} == {
        "DQN",
        "QMIX",
        "VDN",
        "QPLEX",
        "IQL",
        "MADDPG",
    }


@pytest.mark.parametrize(
    ("name", "instead"), [("DQN", "use IQL, which is recurrent DQN"), ("SAC", "use PPO or A2C")]
)
def test_use_lstm_is_refused_for_a_replay_of_single_steps(name: str, instead: str) -> None:
    message = f"{name} cannot have the model setting 'use_lstm': .*; {instead}"
    with pytest.raises(AlgorithmProblem, match=message):
        get_algorithm(name).make_config({}, {"use_lstm": True})


OWN = "muxrl.experiments.examples.own_module:SharedTrunk"


@pytest.mark.parametrize("name", ["PPO", "A2C", "IMPALA"])
def test_a_users_module_gets_model_unchanged(name: str) -> None:
    config = get_algorithm(name).make_config({}, {"width": 8}, OWN)
    spec = config.rl_module_spec
    assert spec.module_class is SharedTrunk
    assert spec.model_config == {"width": 8}


@pytest.mark.parametrize(
    ("algorithm", "path", "message"),
    [
        ("PPO", "SharedTrunk", "must look like 'my_package.my_module:MyRLModule', not 'SharedT"),
        ("PPO", "no_such_package:X", "cannot be imported: ModuleNotFoundError: No module named"),
        (
            "PPO",
            "muxrl.experiments.examples.own_module:SharedTrnk",
            r"no 'SharedTrnk'; did you mean 'SharedTr",
        ),
        ("PPO", "pathlib:Path", r"is the class Path\(.*, and PPO needs a subclass of RLlib's Tor"),
        ("PPO", "math:pi", "is an object of float"),
        ("DQN", OWN, "lacks QNetAPI and TargetNetworkAPI, which DQN's learner calls"),
        ("APPO", OWN, "lacks TargetNetworkAPI, which APPO's"),
        ("QMIX", OWN, "QMIX cannot take an RLModule of your own"),
        ("MAPPO", OWN, "MAPPO cannot take an RLModule of your own"),
    ],
)
def test_a_module_that_does_not_fit_is_refused(algorithm: str, path: str, message: str) -> None:
    with pytest.raises(AlgorithmProblem, match=message):
        get_algorithm(algorithm).make_config({}, {}, path)


def test_spaces_that_fit() -> None:
    image = Box((42, 42, 3), "uint8", 0, 255)
    for name in ("PPO", "A2C"):
        for observation_space in (BOX, image):
            for action_space in (DISCRETE, BOX, MultiDiscrete((2, 3))):
                get_algorithm(name).check_spaces("x", observation_space, action_space)
    team = TeamSpec(("a",), {"a": BOX}, {"a": DISCRETE})
    for name in ("QMIX", "VDN", "QPLEX", "IQL"):
        get_algorithm(name).check_spaces("x", BOX, DISCRETE)
        get_algorithm(name).check_spaces("x", team.observation_space, team.action_space)


def test_spaces_that_do_not_fit() -> None:
    with pytest.raises(AlgorithmProblem) as caught:
        get_algorithm("QMIX").check_spaces("x", BOX, BOX, agent_id="red_1")
    assert str(caught.value) == (
        f"policy 'x': QMIX cannot do the action space {to_gymnasium(BOX)} of agent 'red_1': it "
        "learns one value per discrete action, or per combination of several, up to 1024"
    )
    with pytest.raises(AlgorithmProblem, match=r"DQN cannot do .* takes Discrete$"):
        get_algorithm("DQN").check_spaces("x", BOX, BOX)
    many = MultiDiscrete((2, 3))
    with pytest.raises(AlgorithmProblem, match=r"takes Discrete or a Box of one dim.*, or up to"):
        get_algorithm("SAC").check_spaces("x", BOX, many)
    with pytest.raises(AlgorithmProblem, match="VDN cannot read the observation space Discrete"):
        get_algorithm("VDN").check_spaces("x", DISCRETE, DISCRETE)
    with pytest.raises(AlgorithmProblem, match="PPO cannot read the observation space Discrete"):
        get_algorithm("PPO").check_spaces("x", DISCRETE, DISCRETE)
    with pytest.raises(AlgorithmProblem, match=r"A2C cannot do .* Tuple.*several agents.*'groups'"):
        get_algorithm("A2C").check_spaces("x", BOX, TupleSpace((DISCRETE,)))


@pytest.mark.parametrize(
    ("name", "settings", "env_steps"),
    [
        ("PPO", {"train_batch_size_per_learner": 300}, 300),
        ("SAC", {}, 1),
        ("SAC", {"n_step": 3}, 3),  # RLlib's "auto"
        ("DQN", {"rollout_fragment_length": 8}, 8),
    ],
)
def test_env_steps_of_a_batch(name: str, settings: dict[str, Any], env_steps: int) -> None:
    entry = get_algorithm(name)
    assert entry.batch_env_steps(entry.make_config(settings, {})) == env_steps


@pytest.mark.parametrize(
    ("name", "box", "reason"),
    [
        ("SAC", Box((2,)), "it has no bounds, and actions are scaled"),
        ("PPO", Box((2,), "float32", 0.0), "it has bounds on some sides only"),
        ("PPO", Box((2,), "int64", 0, 9), "out of at most 1024 each; give the Box bounds"),
        (
            "A2C",
            Box((2, 2), "float32", -1.0, 1.0),
            "takes Discrete, MultiDiscrete, MultiBinary or a Box",
        ),
    ],
)
def test_box_actions_that_are_refused(name: str, box: Box, reason: str) -> None:
    with pytest.raises(AlgorithmProblem, match=reason):
        get_algorithm(name).check_spaces("x", BOX, box, agent_id="a")


def test_box_actions_that_are_accepted() -> None:
    for name in ("PPO", "A2C", "IMPALA", "APPO"):
        get_algorithm(name).check_spaces("x", BOX, Box((2,)))
    for name in ("PPO", "SAC"):
        get_algorithm(name).check_spaces("x", BOX, Box((2,), "float32", 2.0, 10.0))
