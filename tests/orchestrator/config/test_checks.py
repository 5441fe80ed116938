"""What is refused in a config by itself."""

import importlib.machinery
import math
import os
import re

import pytest

from muxrl.orchestrator.config import (
    ConfigError,
    ExperimentConfig,
    ExternalAgentConfig,
    SimulationConfig,
    StopConfig,
    load_config,
    trackers,
)
from muxrl.orchestrator.config.checks import find_problems
from muxrl.orchestrator.config.schema import BestConfig
from muxrl.servers.config import ServerConfig

TOKEN = "0123456789abcdef-and-more"


def experiment() -> ExperimentConfig:
    return ExperimentConfig(
        name="x",
        simulation=SimulationConfig(env="module:env"),
        servers={"one": ServerConfig(agents=["a"]), "two": ServerConfig(agents=["b"])},
        stop=StopConfig(env_steps=1000),
    )


def test_a_plain_experiment_has_no_problems():
    assert find_problems(experiment()) == []


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("simulation.num_processes", 0, "is 0, must be above 0"),
        ("simulation.num_envs_per_process", -1, "is -1, must be above 0"),
        ("simulation.num_cpus", -0.5, "is -0.5, must not be negative"),
        ("simulation.update_interval_s", -1.0, "is -1.0, must not be negative"),
        ("simulation.update_interval_s", math.nan, "is nan, must not be negative"),
        ("stop.env_steps", 0, "is 0, must be above 0"),
        ("stop.time_s", math.inf, "is inf, must be above 0"),
        ("stop.iterations", -3, "is -3, must be above 0"),
        ("evaluation.num_episodes", 0, "is 0, must be above 0"),
        ("evaluation.final_num_episodes", -1, "is -1, must not be negative"),
        ("evaluation.interval_env_steps", 0, "is 0, must be above 0"),
        ("evaluation.seed", 2**32, "is 4294967296, must be at most 4294967295"),
        ("checkpoint.interval_s", 0.0, "is 0.0, must be above 0"),
        ("checkpoint.interval_env_steps", 0, "is 0, must be above 0"),
        ("checkpoint.keep_last", 0, "is 0, must be above 0"),
        ("checkpoint.replay_max_mib", -1, "is -1, must not be negative"),
        ("checkpoint.hold_s", -1.0, "is -1.0, must not be negative"),
        ("timeouts.update_s", 0.0, "is 0.0, must be above 0"),
        ("metrics_interval_s", math.nan, "is nan, must be above 0"),
        ("stop.metric_at_most.win", math.nan, "is nan, must be a number"),
        ("stop.episode_return.one", math.nan, "is nan, must be a number"),
        ("checkpoint.best.keep", 0, "is 0, must be above 0"),
        ("seed", -1, "is -1, must not be negative"),
        ("servers.one.resources.num_gpus", -1.0, "is -1.0, must not be negative"),
        ("servers.one.resources.num_torch_threads", 0, "is 0, must be above 0"),
        ("servers.one.limits.max_episodes", 0, "is 0, must be above 0"),
        ("servers.one.limits.episode_timeout_s", 0.0, "is 0.0, must be above 0"),
        ("servers.one.port", -1, "is -1, must not be negative"),
        (
            "servers.one.port",
            70000,
            "is 70000, must be at most 65535; 0 takes a free one",
        ),
        (
            "servers.one.max_policy_lag",
            0,
            "is 0, must be at least 1; for no lag at all set while_learning: wait",
        ),
    ],
)
def test_senseless_numbers(key, value, problem):
    with pytest.raises(ConfigError) as refused:
        load_config(experiment(), {key: value})
    assert refused.value.problems == [f"override '{key}={value}': {key}: {problem}"]


def test_more_environments_than_a_server_has_episodes():
    config = experiment()
    config.simulation.num_processes, config.simulation.num_envs_per_process = 4, 256
    problem = next(one for one in find_problems(config) if one.startswith("servers.one.limits"))
    assert problem.startswith(
        "servers.one.limits.max_episodes: is 1,024, and 1,025 environments play at a time"
    )
    for server in config.servers.values():
        server.limits.max_episodes = 1_025
    assert find_problems(config) == []


@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        ("here", "inference_mode: is 'remote' or 'local', or server to one of these, got 'here'"),
        (None, "inference_mode: is 'remote' or 'local', or server to one of these, got None"),
        ({"one": True}, "inference_mode.one: is 'remote' or 'local', or .*, got True"),
        ({"ona": "local"}, "inference_mode: there is no server 'ona'; did you mean 'one'"),
    ],
)
def test_inference_modes(mode, problem):
    config = experiment()
    config.simulation.inference_mode = mode
    (found,) = find_problems(config)
    assert re.match(f"simulation.{problem}", found)
    config.simulation.inference_mode = {"one": "local", "two": "remote"}
    assert find_problems(config) == []


def test_an_external_simulation_has_no_local_inference():
    config = experiment()
    spaces = ExternalAgentConfig({"type": "box"}, {"type": "discrete", "n": 2})
    config.simulation = SimulationConfig(
        env="external", agents={"a": spaces, "b": spaces}, inference_mode={"one": "local"}
    )
    (found,) = find_problems(config)
    assert "inference_mode: is 'local', but simulations that muxrl does not start" in found


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b", "x" * 200])
def test_a_name_that_cannot_be_a_directory(name):
    config = experiment()
    config.name = name
    (problem,) = find_problems(config)
    assert problem.startswith(f"name: {name!r} cannot name a directory")


@pytest.mark.parametrize("server_id", ["a/b", "a.b", "", "a b"])
def test_a_server_id_that_cannot_be_a_key(server_id):
    config = experiment()
    config.servers[server_id] = ServerConfig(agents=["c"])
    (problem,) = find_problems(config)
    assert problem.startswith(f"servers: the id {server_id!r} names files and keys")


@pytest.mark.parametrize("server_id", ["joint", "evaluation"])
def test_a_server_id_whose_metrics_would_mix_with_the_runs_own(server_id):
    config = experiment()
    config.servers[server_id] = ServerConfig(agents=["c"])
    assert find_problems(config) == [
        f"servers: the id {server_id!r} is a file of the run's own metrics; choose another"
    ]


@pytest.mark.parametrize(
    "server_id", ["gateway", "trial", "launch", "simulation-0", "tracker-wandb"]
)
def test_a_server_id_whose_log_would_be_that_of_another_process(server_id):
    config = experiment()
    config.servers[server_id] = ServerConfig(agents=["c"])
    assert find_problems(config) == [
        f"servers: the id {server_id!r} is a process of the run's own; choose another"
    ]


def test_no_servers():
    config = experiment()
    config.servers = {}
    assert find_problems(config) == ["servers: there is none; at least one has to serve the agents"]


def test_a_server_without_agents_may_be_a_mistyped_id():
    config = experiment()
    config.servers["onee"] = ServerConfig(port=9900)
    assert find_problems(config) == [
        "server 'onee': serves no agents; list names or patterns under servers.onee.agents; did "
        "you mean 'one'?"
    ]


@pytest.mark.parametrize(
    ("hosts", "is_clash"),
    [
        (("127.0.0.1", "127.0.0.1"), True),
        (("127.0.0.1", "localhost"), True),
        (("127.0.0.1", "0.0.0.0"), True),
        (("10.0.0.1", "10.0.0.2"), False),
    ],
)
def test_two_servers_on_one_port(hosts, is_clash):
    config = experiment()
    for server, host in zip(config.servers.values(), hosts, strict=True):
        server.host, server.port, server.token = host, 9900, TOKEN
    problem = (
        f"servers 'one' and 'two': both listen on {hosts[0]}:9900; give one of them another port, "
        "or 0 for any free one"
    )
    assert find_problems(config) == ([problem] if is_clash else [])


def test_any_free_port_never_clashes():
    config = experiment()
    assert {server.port for server in config.servers.values()} == {0}
    assert find_problems(config) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::", "my-machine"])
def test_a_reachable_host_demands_a_token(host):
    config = experiment()
    config.servers["one"].host = host
    assert find_problems(config) == [
        f"server 'one': listens on {host!r}, which other machines can reach, without a token; set "
        "servers.one.token, or the host to 127.0.0.1"
    ]
    config.servers["one"].token = TOKEN
    assert find_problems(config) == []


def test_a_token_that_can_be_guessed():
    config = experiment()
    config.servers["one"].token = TOKEN[:15]
    (problem,) = find_problems(config)
    assert problem.startswith("server 'one': its token has 15 characters, which can be guessed")
    assert "at least 16" in problem
    assert "secrets.token_urlsafe(32)" in problem
    assert TOKEN[:15] not in problem
    config.servers["one"].token = TOKEN[:16]
    assert find_problems(config) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.4.5", "::1", "localhost"])
def test_loopback_needs_no_token(host):
    config = experiment()
    config.servers["one"].host = host
    assert find_problems(config) == []


@pytest.mark.parametrize(
    "token", ["two words in a token", "schlüssel-zum-server", "line\nbreak in a token"]
)
def test_a_token_that_no_header_carries(token):
    config = experiment()
    config.servers["one"].token = token
    (problem,) = find_problems(config)
    assert problem.startswith("server 'one': its token cannot travel in an HTTP header")
    assert token not in problem


def test_a_run_without_an_end():
    config = experiment()
    config.stop = StopConfig()
    assert find_problems(config) == [
        "stop: nothing ends this run; give at least one of env_steps, time_s, iterations, "
        "episode_return, metric_at_least, metric_at_most"
    ]
    assert find_problems(config, needs_stop=False) == []


def test_stop_at_a_metric_that_no_episode_will_have():
    config = experiment()
    config.simulation.metrics = {"win": "last"}
    config.stop = StopConfig(metric_at_least={"win": 0.9}, metric_at_most={"episode_length": 50})
    assert find_problems(config) == []
    config.stop = StopConfig(metric_at_least={"wins": 0.9}, metric_at_most={"zzz": 1.0})
    assert find_problems(config) == [
        "stop.metric_at_least: there is no metric 'wins'; did you mean 'win'?",
        "stop.metric_at_most: there is no metric 'zzz'; simulation.metrics and muxrl's own are "
        "win, episode_length, truncated",
    ]


def test_an_algorithm_beside_a_process_of_its_own():
    config = experiment()
    config.servers["one"] = ServerConfig(agents=["a"], command=["own.py"])
    config.servers["two"] = ServerConfig(agents=["b"], address="host:99")
    assert [server.algorithm for server in config.servers.values()] == ["EXTERNAL", "EXTERNAL"]
    assert find_problems(config) == []
    config.servers["two"].algorithm = "PPO"
    assert find_problems(config) == [
        "server 'two': has algorithm PPO and address, whose process brings its own; leave out one "
        "of them, or set algorithm: EXTERNAL"
    ]


def test_stop_at_the_return_of_an_unknown_server():
    config = experiment()
    config.stop.episode_return = {"onne": 1.0}
    assert find_problems(config) == [
        "stop.episode_return: there is no server 'onne'; did you mean 'one'?"
    ]
    config.stop.episode_return = {"zzz": 1.0}
    assert find_problems(config) == [
        "stop.episode_return: there is no server 'zzz'; the servers are one, two"
    ]


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ("", "simulation.env: is missing; "),
        (
            "externl",
            "simulation.env: 'externl' is neither 'package.module:callable' nor "
            "'gymnasium:ENV_ID' nor 'pettingzoo:ENV_ID' nor 'open_spiel:GAME' nor "
            "'external'; did you mean 'external'?",
        ),
        ("__main__:Mine", "simulation.env: '__main__:Mine' is in the script that runs, "),
    ],
)
def test_env_of_no_known_form(env, problem):
    config = experiment()
    config.simulation.env = env
    (found,) = find_problems(config)
    assert found.startswith(problem)


def test_external_simulation_without_agents_or_spaces():
    config = experiment()
    config.simulation = SimulationConfig(env="external")
    (problem,) = find_problems(config)
    assert problem.startswith("simulation.agents: is missing; an external simulation cannot be")
    config.simulation.agents = {"a": ExternalAgentConfig({"type": "discrete", "n": 2})}
    assert find_problems(config) == [
        "simulation.agents.a.action_space: is missing; give its plain form, such as "
        "{type: discrete, n: 2}"
    ]


def test_an_external_simulation_plays_no_random_actions_itself():
    config = experiment()
    space = {"type": "discrete", "n": 2}
    config.simulation = SimulationConfig(
        env="external", agents={"a": ExternalAgentConfig(space, space)}
    )
    config.servers["one"].on_server_loss = "random"
    problems = find_problems(config)
    assert [p for p in problems if "on_server_loss" in p and "StandIn" in p]
    config.servers["one"].on_server_loss = "wait"
    assert not [p for p in find_problems(config) if "on_server_loss" in p]


def test_an_external_simulation_needs_no_stop_and_may_be_evaluated_meanwhile():
    config = experiment()
    space = {"type": "discrete", "n": 2}
    config.simulation = SimulationConfig(
        env="external", agents={"a": ExternalAgentConfig(space, space)}
    )
    config.stop = StopConfig()
    assert find_problems(config) == []
    config.evaluation.interval_env_steps = 10
    assert find_problems(config) == []
    config.simulation.kwargs = {"a": 1}
    (problem,) = find_problems(config)
    assert problem.startswith("simulation.kwargs: is given, but an external simulation")
    config.simulation.kwargs, config.simulation.metrics = {}, {"win": "last"}
    (problem,) = find_problems(config)
    assert problem.startswith("simulation.metrics: is given, but muxrl does not see the infos")


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        ({"win": "lst"}, "simulation.metrics.win: 'lst' is no way to reduce numbers; did you mean"),
        ({"win": "x"}, "'x' is no way to reduce numbers; there are last, sum, mean, max, min"),
        ({"return": "sum"}, "simulation.metrics: 'return' is muxrl's own"),
        ({"episode_length": "sum"}, "simulation.metrics: 'episode_length' is muxrl's own"),
        ({"truncated": "last"}, "simulation.metrics: 'truncated' is muxrl's own"),
        ({"a b": "sum"}, "simulation.metrics: 'a b' cannot name a metric; use letters"),
        ({"a//b": "sum"}, "simulation.metrics: 'a//b' cannot name a metric; use letters"),
    ],
)
def test_metrics_that_cannot_be(metrics: dict[str, str], told: str):
    config = experiment()
    config.simulation.metrics = metrics
    (problem,) = find_problems(config)
    assert told in problem


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("checkpoint.best", BestConfig(of="win"),
         "checkpoint.best.of: there is no server 'win'; it is a metric, so write name: win"),
        ("stop.metric_at_least", {"return": 5.0},
         "stop.metric_at_least: there is no metric 'return'; stop.episode_return is for that"),
        ("simulation.parameters", {"wind": {"lessons": [1, 2], "next_when": {
            "metric": "return", "of": "win", "at_least": 3, "episodes": 9}}},
         "simulation.parameters.wind.next_when.of: there is no server 'win'; it is a metric, so "
         "write metric: win"),
        ("simulation.parameters", {"wind": "5"},
         "simulation.parameters.wind: '5' is text; leave out the quotes: 5"),
        ("simulation.parameters", {"wind": {"lessons": [1, "2"], "next_when": {
            "metric": "win", "at_least": "8e-1", "episodes": "9"}}},
         "simulation.parameters.wind: '2' is text; leave out the quotes: 2"),
        ("simulation.parameters", {"wind": [[0, "1"], ["1e5", 3]]},
         "simulation.parameters.wind: '1' is text; leave out the quotes: 1"),
    ],
)  # fmt: skip
def test_the_way_out_is_named(key, value, problem):
    config = experiment()
    config.simulation.metrics = {"win": "last", "a/b": "last"}
    config.evaluation.interval_env_steps = 100
    section, name = key.split(".")
    setattr(getattr(config, section), name, value)
    assert find_problems(config) == [problem]


def test_a_gateway_that_others_can_reach_needs_a_token():
    config = experiment()
    space = {"type": "discrete", "n": 2}
    config.simulation = SimulationConfig(
        env="external", agents={"a": ExternalAgentConfig(space, space)}
    )
    config.simulation.gateway.host = "0.0.0.0"
    (problem,) = find_problems(config)
    assert problem.startswith("the gateway: listens on '0.0.0.0', which other machines can reach")
    config.simulation.gateway.token = "short"
    (problem,) = find_problems(config)
    assert "its token has 5 characters" in problem
    config.simulation.gateway.token = "long-enough-to-be-a-token"
    assert find_problems(config) == []


def test_spaces_of_a_simulation_that_is_asked():
    config = experiment()
    config.simulation.state_size = 4
    assert find_problems(config) == [
        "simulation.state_size: is only for env: external; the simulation 'module:env' is asked "
        "itself"
    ]


@pytest.mark.parametrize(
    ("tracker", "problem"),
    [
        ("wandb", "'wandb' needs wandb, not installed here; it comes with: "
         "pip install 'muxrl[wandb]'"),
        ("mlflow", "'mlflow' needs mlflow, not installed here; it comes with: "
         "pip install 'muxrl[mlflow]'"),
        ("wanb", "there is no tracker 'wanb'; did you mean 'wandb'?; name one of your own as "
         "'package.module:Tracker'"),
        ("tensorboard", "'tensorboard' is named 2 times; it gets each row once"),
        ("nowhere:Tracker", "'nowhere:Tracker' cannot be imported: ModuleNotFoundError: No module "
         "named 'nowhere'"),
    ],
)  # fmt: skip
def test_trackers_that_are_not_there(tracker, problem, monkeypatch, tmp_path):
    (tmp_path / "wandb").mkdir()  # as W&B's offline runs make one; it is no package
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trackers, "find_spec", in_the_current_folder)
    config = experiment()
    config.trackers = ["tensorboard", tracker]
    found = find_problems(config)
    assert f"trackers: {problem}" in found


def in_the_current_folder(name):
    return importlib.machinery.PathFinder.find_spec(name, [os.getcwd()])


def test_the_best_is_chosen_by_evaluations_of_a_server_that_there_is():
    config = experiment()
    config.checkpoint.best = BestConfig(of="ones", name="wins")
    config.evaluation.interval_env_steps = None
    problems = [p for p in find_problems(config) if p.startswith("checkpoint.best")]
    assert problems == [
        "checkpoint.best: needs evaluations to choose by; set evaluation.interval_env_steps, or "
        "leave it out",
        "checkpoint.best.of: there is no server 'ones'; did you mean 'one'?",
        "checkpoint.best.name: there is no metric 'wins'; simulation.metrics and muxrl's own are "
        "episode_length, truncated, return",
    ]
    config.checkpoint.best = BestConfig(of="one", keep=2)
    config.evaluation.interval_env_steps = 1_000
    assert find_problems(config) == []
