"""What an algorithm's name in a config stands for, and which settings and spaces algorithms
take."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.servers.resumable import CASES
from tests.servers.scripted_store import make_plan

from muxrl.orchestrator.config.schema import ExperimentConfig
from muxrl.protocol.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space, TupleSpace
from muxrl.servers.config import AgentPlan, ServerConfig
from muxrl.servers.fixed_names import FIXED_NAMES
from muxrl.servers.gymnasium_spaces import to_gymnasium
from muxrl.servers.lookup import find, own_algorithms
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.trainers import brought_settings
from muxrl.servers.trainers.lookup import registered

BOX = Box((4,), "float32", -1.0, 1.0)
DISCRETE = Discrete(3)
BUFFER = "replay_buffer_config"
PRIORITIZED = "MultiAgentPrioritizedEpisodeReplayBuffer"


def made(name: str, settings: Any = (), model: Any = ()) -> Any:
    """Returns an algorithm's settings with the values that a user gave."""
    algorithm: Any = find(name)
    return algorithm.make_settings(ServerConfig(name, settings=dict(settings), model=dict(model)))


def problems(name: str, **given: Any) -> list[str]:
    return list(find(name).find_config_problems(ServerConfig(name, **given)))


@pytest.mark.parametrize("entry", own_algorithms(), ids=lambda entry: entry.name)
def test_every_algorithm_makes_valid_settings_of_its_defaults(entry: Any) -> None:
    assert find(entry.name.lower()).name == entry.name
    waits = entry.learns_from == "newest"
    assert entry.find_while_learning("auto") == ("wait" if waits else "serve")
    assert entry.acts_while_learning == entry.make.acts_while_learning
    defaults = entry.settings()
    assert not [name for name in defaults if name.startswith("_")]
    config = made(entry.name, defaults, entry.model_settings())
    assert type(config) is entry.make.Settings
    assert {name: getattr(config, name) for name in defaults} == defaults


def test_own_algorithms_are_registered_as_other_packages_are() -> None:
    """Algorithms are found under the names in the checkout, also if its installed metadata is
    older."""
    tested = {algorithm for algorithm, *_ in CASES.values()}
    assert {entry.name for entry in own_algorithms()} == tested, "tests/servers/resumable.py"
    assert {"PPO", "QMIX", "SB3_DQN"} < set(registered())
    assert list(registered()) == sorted(registered(), key=str.lower)


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
def test_an_algorithm_s_actions_and_memory_are_said_in_a_word(
    name: str, actions: str, memory: str
) -> None:
    entry = find(name)
    assert (entry.takes_actions(), entry.memory()) == (actions, memory)


@pytest.mark.parametrize(
    ("name", "likely"),
    [
        ("QMX", "'QMIX'"),
        ("a3c", "'A2C' or 'SAC'"),
        ("impalla", "'IMPALA' or 'RLLIB_IMPALA'"),
        ("TD3", "'SB3_TD3'"),
    ],
)
def test_an_unknown_name_is_answered_with_a_known_one(name: str, likely: str) -> None:
    with pytest.raises(AlgorithmProblem) as caught:
        find(name)
    known = ", ".join([*registered(), *FIXED_NAMES])
    told = f"unknown algorithm {name!r}; did you mean {likely}?; known: {known}"
    assert str(caught.value) == told


@pytest.mark.parametrize(
    ("name", "reason"),
    [("CQL", "recorded data only"), ("marwil", "recorded"), ("DreamerV3", "one agent alone")],
)
def test_rllib_algorithms_that_servers_cannot_use_are_refused_with_the_reason(
    name: str, reason: str
) -> None:
    with pytest.raises(AlgorithmProblem, match=reason):
        find(name)


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        ("DQN", {"noisy": True}, "DQN makes no use of 'noisy'"),
        ("DQN", {"target_update": 9}, r"no setting 'target_update'; did you mean 'target_net"),
        ("QMIX", {"prioritized_replay_alpha": 1.5}, r"QMIX: .*alpha=1.5 must lie in \[0, 1\]; 0 d"),
        ("VDN", {"prioritized_replay_beta": -0.1}, r"replay_beta=-0.1 must lie in \[0, 1\]"),
        ("SAC", {"lr": 0.1}, "SAC has no setting 'lr'; it is 'actor_lr' here"),
        ("SAC", {"q_model_config": {}}, "SAC makes no use of 'q_model_config'"),
        ("IMPALA", {"broadcast_interval": 2}, "IMPALA makes no use of 'broadcast_interval'"),
        ("APPO", {"use_circular_buffer": False}, "APPO makes no use of 'use_circular_buffer'"),
        ("APPO", {"num_aggregator_actors_per_learner": 2}, "APPO makes no use of 'num_aggregator_"),
        ("DQN", {BUFFER: {"type": PRIORITIZED[10:]}}, f"several agents; use {PRIORITIZED}"),
        ("SAC", {BUFFER: {"type": "Reservoir"}}, f"several agents; known: .*, {PRIORITIZED}"),
        ("DQN", {BUFFER: {"capcity": 9}}, "no key 'capcity' .*mean 'capacity'"),
        ("DQN", {BUFFER: {"capacity": 0}}, "'capacity', must not be 0"),
        ("DQN", {BUFFER: {"alpha": 0.5}}, f"'alpha' .* which {PRIORITIZED}"),
        ("A2C", {"learning_rate": 1}, "A2C has no setting 'learning_rate'; it is 'lr' here"),
        ("PPO", {"entropy_coef": 1}, "no setting 'entropy_coef'; it is 'entropy_coeff' here"),
        ("QMIX", {"_env": 1}, "QMIX has no setting '_env'"),
        ("QMIX", {"num_learners": 2}, "QMIX makes no use of 'num_learners'"),
        ("PPO", {"log_gradients": True}, "PPO makes no use of 'log_gradients'"),
        ("DQN", {"metrics_num_episodes_for_smoothing": 9}, "DQN makes no use of 'metrics_num_"),
        ("A2C", {"clip_param": 0.1}, "A2C makes no use of 'clip_param'"),
        ("QMIX", {"train_batch_size": 9}, "'train_batch_size'; it is 'batch_size_episodes' here"),
        ("VDN", {"mixer": "qmix"}, "VDN is QMIXSettings with mixer='vdn'.* use QMIX"),
        ("PPO", {"lr": -0.1}, "PPO: lr=-0.1 must be at least 0$"),
        ("A2C", {"lr": float("nan")}, "A2C: lr=nan must be at least 0$"),
        ("PPO", {"gamma": 1.5}, r"PPO: gamma=1.5 must lie in \[0, 1\]$"),
        ("PPO", {"grad_clip": -1}, "PPO: grad_clip=-1 must be above 0, or None$"),
        ("MAPPO", {"minibatch_size": 0}, "minibatch_size=0 must be a whole number of at least 1$"),
        ("HAPPO", {"train_batch_size_per_learner": 0}, "must be a whole number of at least 1$"),
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
        made(algorithm, settings)


@pytest.mark.parametrize("algorithm", ["PPO", "MAPPO", "HAPPO"])
@pytest.mark.parametrize("num_agents", [1, 3])
def test_a_minibatch_is_of_transitions_of_all_agents_of_a_policy(
    algorithm: str, num_agents: int
) -> None:
    plan = make_plan("abcd"[: num_agents + 1])
    alone = list(plan.agents)[-1]
    agents = {a: dataclasses.replace(p, policy_id="shared") for a, p in plan.agents.items()}
    agents[alone] = dataclasses.replace(agents[alone], policy_id="alone")

    def problems(size: int) -> list[str]:
        settings = {"train_batch_size_per_learner": 64, "minibatch_size": size}
        given = dataclasses.replace(plan, algorithm=algorithm, agents=agents, settings=settings)
        return list(find(algorithm).find_problems(given))

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
    found = problems(algorithm, settings=dict.fromkeys(brought, 1))
    assert len(found) == len(brought)
    for name, place, problem in zip(brought, places, found, strict=True):
        assert f"{name!r}" in problem
        assert place in problem


def test_every_suggested_place_of_a_brought_setting_exists() -> None:
    """A place that no algorithm has would be as wrong as the setting that it is suggested for."""
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
        made("PPO", model={"fcnet_hidden": [8]})
    with pytest.raises(AlgorithmProblem, match="QMIX has no separate model settings"):
        made("QMIX", model={"fcnet_hiddens": [8]})


def test_replay_buffer_settings_are_completed_with_defaults() -> None:
    def completed(config: Any) -> Any:
        return made("DQN", {BUFFER: config}).replay_buffer_config

    assert completed({"capacity": 70}) == {"type": "MultiAgentEpisodeReplayBuffer", "capacity": 70}
    given = {"type": PRIORITIZED, "beta": 0.9}
    assert completed(given) == {**given, "capacity": 50_000, "alpha": 0.6}


def test_algorithms_with_action_values_do_not_draw_from_a_distribution() -> None:
    of_values = {entry.name for entry in own_algorithms() if not entry.samples_actions}
    assert of_values == {"DQN", "QMIX", "VDN", "QPLEX", "IQL", "MADDPG"}


@pytest.mark.parametrize(
    ("name", "setting", "sentence"),
    [
        ("DQN", "use_lstm", "cannot have the model setting 'use_lstm': .*; use IQL, which is"),
        ("DQN", "max_seq_len", "makes no use of 'max_seq_len'; remove it"),
        ("DQN", "free_log_std", "makes no use of 'free_log_std'"),
        ("SAC", "use_lstm", "cannot have the model setting 'use_lstm': .*; use PPO or A2C"),
        ("SAC", "free_log_std", "cannot have .*: the deviation of its actions depends on the"),
        ("SAC", "log_std_clip_param", "makes no use of 'log_std_clip_param'"),
        ("HAPPO", "lstm_cell_size", "makes no use of 'lstm_cell_size'"),
        ("MAPPO", "vf_share_layers", "cannot have .*: its actor and its critic read different"),
    ],
)
def test_network_settings_without_effect_are_refused(
    name: str, setting: str, sentence: str
) -> None:
    with pytest.raises(AlgorithmProblem, match=f"{name} {sentence}"):
        made(name, model={setting: True})


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("PPO", "makes its networks itself; for {} use RLLIB_PPO"),
        ("DQN", "makes its networks itself; for {} use RLLIB_DQN"),
        ("A2C", "makes its networks itself; for {} use RLLIB_PPO"),
        ("QMIX", "cannot take {}: its mixer and its members' networks belong together"),
        ("MAPPO", "cannot take {}: its critic reads the global state, its actor does not"),
    ],
)
def test_a_module_of_ones_own_is_for_rllibs_algorithms(name: str, sentence: str) -> None:
    (found,) = problems(name, rl_module="a:B")
    given = "an RLModule of your own ('a:B' was given)"
    assert found.startswith(f"{name} {sentence.format(given)}")


def test_a_module_s_algorithm_is_there() -> None:
    for entry in own_algorithms():
        (found,) = problems(entry.name, rl_module="a:B")
        named = found.partition(" use ")[2]
        assert not named or named in registered()


@pytest.mark.parametrize(
    ("name", "sees", "acts", "message"),
    [
        ("DQN", BOX, BOX, "DQN cannot do .* takes Discrete$"),
        ("SAC", BOX, MultiDiscrete((40, 40)), "takes Discrete or a Box of one dim.*, or up to"),
        ("A2C", BOX, TupleSpace((BOX,)), "A2C cannot do .* Tuple.*several agents.*'groups'"),
        ("SAC", BOX, Box((2,)), "it has no bounds, and actions are scaled"),
        ("PPO", BOX, Box((2,), "float32", 0.0), "it has bounds on some sides only"),
        ("PPO", BOX, Box((2,), "int64", 0, 9_999), "out of at most 1024 each; give the Box bounds"),
        (
            "A2C",
            BOX,
            Box((2, 2), "int64", 0, 9_999),
            "takes Discrete, MultiDiscrete, MultiBinary or",
        ),
        (
            "DQN",
            BOX,
            MultiBinary(11),
            r"action space MultiBinary\(11\), .* Discrete, or up to",
        ),
        ("SAC", BOX, MultiBinary(11), r"the action space MultiBinary\(11\), .* it takes Discrete"),
        (
            "IQL",
            BOX,
            MultiBinary(11),
            r"action space MultiBinary\(11\), .* one value per",
        ),
    ],
)
def test_spaces_that_do_not_fit_are_refused(
    name: str, sees: Space, acts: Space, message: str
) -> None:
    with pytest.raises(AlgorithmProblem, match=message):
        find(name).check_agent("a", AgentPlan("x", sees, acts))


def test_the_agent_whose_space_does_not_fit_is_named() -> None:
    with pytest.raises(AlgorithmProblem) as caught:
        find("QMIX").check_agent("red_1", AgentPlan("x", BOX, BOX))
    assert str(caught.value) == (
        f"policy 'x': QMIX cannot do the action space {to_gymnasium(BOX)} of agent 'red_1': it "
        "learns one value per discrete action, or per combination of several, up to 1024"
    )
