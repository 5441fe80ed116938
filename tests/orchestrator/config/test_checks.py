"""What is refused in a config without knowing its simulation."""

import importlib.machinery
import math
import os
import re

import pytest

from muxrl.orchestrator.config import (
    ConfigError,
    load_config,
    trackers,
)
from muxrl.orchestrator.config.checks import find_problems
from muxrl.servers.config import ServerConfig

TOKEN = "0123456789abcdef-and-more"
SPACE = {"type": "discrete", "n": 2}
BOTH = {"observation_space": SPACE, "action_space": SPACE}
EXTERNAL = {"simulation.env": "external", "simulation.agents": {"a": BOTH}}
EVALUATED = {"evaluation.interval_env_steps": 100}
METRICS = {"simulation.metrics": {"win": "last", "a/b": "last"}}
ELSEWHERE = "which other machines can reach, without a token; set"
GIVEN = "simulation.parameters.wind"
NO_LAG = "is 0, must be at least 1; for no lag at all set while_learning: wait"


GOOD = {
    "simulation": {"env": "module:env"},
    "servers": {"one": {"agents": ["a"]}, "two": {"agents": ["b"]}},
    "stop": {"env_steps": 1000},
}


def problems(changes, **how) -> list[str]:
    return find_problems(load_config(GOOD, changes), **how)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("simulation.num_processes", 0, "is 0, must be above 0"),
        ("simulation.num_cpus", -0.5, "is -0.5, must not be negative"),
        ("simulation.update_interval_s", math.nan, "is nan, must not be negative"),
        ("stop.time_s", math.inf, "is inf, must be above 0"),
        ("stop.iterations", -3, "is -3, must be above 0"),
        ("stop.metric_at_most.win", math.nan, "is nan, must be a number"),
        ("evaluation.seed", 2**32, "is 4294967296, must be at most 4294967295"),
        ("checkpoint.best.keep", 0, "is 0, must be above 0"),
        ("servers.one.limits.episode_timeout_s", 0.0, "is 0.0, must be above 0"),
        ("servers.one.limits.max_connections", 0, "is 0, must be above 0"),
        ("servers.one.port", 70000, "is 70000, must be at most 65535; 0 takes a free port"),
        ("servers.one.max_policy_lag", 0, NO_LAG),
    ],
)
def test_numbers_out_of_bounds_are_refused(key, value, problem):
    """All bounds of numbers are in the committed schema, see test_json_schema.py."""
    with pytest.raises(ConfigError) as refused:
        load_config(GOOD, {key: value})
    assert refused.value.problems == [f"override '{key}={value}': {key}: {problem}"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # --- servers: ids, ports, tokens
        *(({"servers": {name: {"agents": ["c"]}}},
           f"servers: the id {name!r} cannot be the name of files and config keys; use letters...")
          for name in ("a/b", "a.b", "", "a b")),
        *(({"servers": {name: {"agents": ["c"]}}},
           f"servers: the id {name!r} is taken by a file of the run's metrics; choose another")
          for name in ("joint", "evaluation")),
        *(({"servers": {name: {"agents": ["c"]}}},
           f"servers: the id {name!r} is taken by a process of the run; choose another")
          for name in ("gateway", "trial", "launch", "simulation-0", "tracker-wandb")),
        ({"servers": {}}, "servers: is empty; at least one server has to serve the agents"),
        ({"servers.onee.port": 9900},
         "server 'onee': serves no agents; list names or patterns under servers.onee.agents; did "
         "you mean 'one'?"),
        *(({f"servers.{s}": {"host": host, "port": 9900, "token": TOKEN}
            for s, host in (("one", first), ("two", other))},
           f"servers 'one' and 'two': both listen on {first}:9900; give one of them another port, "
           "or 0 for any free one")
          for first, other in (("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "localhost"),
                               ("127.0.0.1", "0.0.0.0"))),
        *(({"servers.one.host": host},
           f"server 'one': listens on {host!r}, {ELSEWHERE} servers.one.token, or the host to "
           "127.0.0.1") for host in ("0.0.0.0", "10.1.2.3", "::", "my-machine")),
        ({"servers.one.token": TOKEN[:15]},
         "server 'one': its token has 15 characters, which can be guessed; ... at least 16, "
         "...secrets.token_urlsafe(32)..."),
        *(({"servers.one.token": token},
           "server 'one': its token cannot be sent in an HTTP header; use ASCII characters without "
           "spaces")
          for token in ("two words in a token", "schlüssel-zum-server", "line\nbreak in a token")),
        ({"servers.two": {"address": "host:99", "algorithm": "PPO"}},
         "server 'two': has algorithm PPO, and address, whose process has an algorithm itself; "
         "leave out one of the two, or set algorithm: EXTERNAL"),
        # --- the simulation
        ({"simulation.env": ""}, "simulation.env: is missing; ..."),
        ({"simulation.env": "externl"},
         "simulation.env: 'externl' is neither 'package.module:callable' nor 'gymnasium:ENV_ID' "
         "nor 'pettingzoo:ENV_ID' nor 'open_spiel:GAME' nor 'external'; did you mean 'external'?"),
        ({"simulation.env": "__main__:Mine"},
         "simulation.env: '__main__:Mine' is defined in the script that is running, ..."),
        ({"simulation.state_size": 4},
         "simulation.state_size: is only for env: external; muxrl reads it from 'module:env' "
         "itself, so leave it out"),
        ({"simulation.env": "external"},
         "simulation.agents: is missing; an external simulation cannot be..."),
        ({"simulation.env": "external", "simulation.agents": {"a": {"observation_space": SPACE}}},
         "simulation.agents.a.action_space: is missing; describe the space, such as "
         "{type: discrete, n: 2}"),
        (EXTERNAL | {"simulation.kwargs": {"a": 1}},
         "simulation.kwargs: is only for simulations that muxrl makes itself, and this one is "
         "external; leave it out"),
        (EXTERNAL | METRICS, "simulation.metrics: is given, but muxrl does not see the infos..."),
        (EXTERNAL | {"simulation.inference_mode": {"one": "local"}},
         "simulation.inference_mode: is 'local', but an external simulation reaches..."),
        (EXTERNAL | {"servers.one.on_server_loss": "random"},
         "servers.one.on_server_loss: is 'random', ...StandIn"),
        (EXTERNAL | {"simulation.gateway.host": "0.0.0.0"},
         f"the gateway: listens on '0.0.0.0', {ELSEWHERE}..."),
        (EXTERNAL | {"simulation.gateway": {"host": "0.0.0.0", "token": "short"}},
         "the gateway: its token has 5 characters..."),
        # --- inference, metrics, parameters
        *(({"simulation.inference_mode": mode}, f"simulation.inference_mode{problem}")
          for mode, problem in (
              ("here", ": must be 'remote' or 'local', or a mapping of server ids to these, got "
                       "'here'"),
              (None, ": must be 'remote' or 'local', or a mapping of ..., got None"),
              ({"one": True}, ".one: must be 'remote' or 'local', or ..., got True"),
              ({"ona": "local"}, ": there is no server 'ona'; did you mean 'one'?"))),
        *(({"simulation.metrics": metrics}, f"simulation.metrics{problem}")
          for metrics, problem in (
              ({"win": "lst"}, ".win: 'lst' is no way to make one number of ...; did you mean..."),
              ({"win": "x"}, ".win: 'x' is no way to make one number of an episode's; known are "
                             "last, sum, mean, max, min..."),
              ({"return": "sum"}, ": 'return' is the name of a number that muxrl itself..."),
              ({"episode_length": "sum"}, ": 'episode_length' is the name of a number..."),
              ({"truncated": "last"}, ": 'truncated' is the name of a number that..."),
              ({"a b": "sum"}, ": 'a b' cannot name a metric; use letters..."),
              ({"a//b": "sum"}, ": 'a//b' cannot name a metric; use letters..."))),
        (METRICS | {GIVEN: {"lessons": [1, 2], "next_when": {
            "metric": "return", "of": "win", "at_least": 3, "episodes": 9}}},
         f"{GIVEN}.next_when.of: there is no server 'win'; it is a metric, so write metric: win"),
        ({GIVEN: "5"}, f"{GIVEN}: '5' is text; leave out the quotes: 5"),
        ({GIVEN: [[0, "1"], ["1e5", 3]]}, f"{GIVEN}: '1' is text; leave out the quotes: 1"),
        # --- the end, and the best
        ({"stop": {}},
         "stop: nothing ends this run; give at least one of env_steps, time_s, iterations, "
         "episode_return, metric_at_least, metric_at_most"),
        (METRICS | {"stop.metric_at_least": {"wins": 0.9}},
         "stop.metric_at_least: there is no metric 'wins'; did you mean 'win'?"),
        ({"stop.metric_at_least": {"return": 5.0}},
         "stop.metric_at_least: there is no metric 'return'; for the return use "
         "stop.episode_return"),
        (EXTERNAL | {"stop.metric_at_most": {"return": 5.0}},
         "stop.metric_at_most: there is no metric 'return'; for the return use "
         "stop.episode_return"),
        (EXTERNAL | {"stop.metric_at_least": {"a win": 1.0}},
         "stop.metric_at_least: there is no metric 'a win'; a simulation can name its metrics "
         "by letters, digits, '_', '-', '.' and '/', up to 100"),
        ({"stop.episode_return": {"onne": 1.0}},
         "stop.episode_return: there is no server 'onne'; did you mean 'one'?"),
        ({"checkpoint.best": {}},
         "checkpoint.best: needs evaluations during the run, by which checkpoints are compared; "
         "set evaluation.interval_env_steps, or leave out checkpoint.best"),
        (EVALUATED | {"checkpoint.best.of": "ones"},
         "checkpoint.best.of: there is no server 'ones'; did you mean 'one'?"),
        (EVALUATED | METRICS | {"checkpoint.best.of": "win"},
         "checkpoint.best.of: there is no server 'win'; it is a metric, so write name: win"),
        (EVALUATED | {"checkpoint.best.name": "wins"},
         "checkpoint.best.name: there is no metric 'wins'; simulation.metrics and muxrl's own are "
         "episode_length, truncated, return"),
    ],
)  # fmt: skip
def test_what_is_refused(changes, expected):
    """In the expected text, "..." stands for any words."""
    (problem,) = problems(changes)
    assert re.fullmatch(".*".join(map(re.escape, expected.split("..."))), problem)
    assert changes.get("servers.one.token", TOKEN) not in problem


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"servers.one": {"host": "10.0.0.1", "port": 9900, "token": TOKEN},
         "servers.two": {"host": "10.0.0.2", "port": 9900, "token": TOKEN}},
        {"servers.one": {"host": "0.0.0.0", "token": TOKEN[:16]}},
        *({"servers.one.host": host} for host in ("127.0.0.1", "127.3.4.5", "::1", "localhost")),
        {"servers.one": {"agents": ["a"], "command": ["own.py"], "algorithm": "EXTERNAL"},
         "servers.two": {"address": "host:99", "algorithm": "EXTERNAL"}},
        {"simulation.inference_mode": {"one": "local", "two": "remote"}},
        METRICS | {"stop.metric_at_least": {"win": 0.9},
                   "stop.metric_at_most": {"episode_length": 50}},
        EXTERNAL | {"stop": {}},
        EXTERNAL | {"stop": {}, "servers.one.on_server_loss": "wait"} | EVALUATED,
        EXTERNAL | {"stop.metric_at_most": {"late": 3, "truncated": 0}},
        EXTERNAL | {"simulation.gateway": {"host": "0.0.0.0", "token": TOKEN}},
        EVALUATED | {"checkpoint.best": {"of": "one", "keep": 2}},
    ],
)  # fmt: skip
def test_valid_configs_are_not_refused(changes):
    assert problems(changes) == []


def test_a_config_without_a_stop_condition_can_be_served():
    assert problems({"stop": {}}, needs_stop=False) == []


def test_a_server_with_a_command_or_an_address_needs_no_algorithm():
    own = ServerConfig(agents=["a"], command=["own.py"]), ServerConfig(address="host:99")
    assert [server.algorithm for server in own] == ["EXTERNAL", "EXTERNAL"]


@pytest.mark.parametrize(
    "name", ["", "a/b", "..", ".hidden", "a b", "x" * 200, "../b", "a:b", "a\0"]
)
def test_a_name_that_cannot_be_a_directory_is_refused(name):
    config = load_config(GOOD)
    config.name = name
    (problem,) = find_problems(config)
    assert problem.startswith(f"name: {name!r} cannot name a directory")


@pytest.mark.parametrize(
    ("per_process", "evaluation", "num_open", "num_evaluated"),
    [
        (1, {}, 5, 1),
        (256, {}, 1_032, 8),
        (8, {"num_episodes": 3}, 35, 3),
        (256, {"num_envs": 2}, 1_026, 2),
        (256, {"interval_env_steps": None}, 1_024, 8),  # its training has ended
        (1, {"interval_env_steps": None, "num_envs": 80}, 80, 80),
    ],
)
def test_environments_that_play_at_the_same_time_fit_into_a_server(
    per_process, evaluation, num_open, num_evaluated
):
    evaluation = {"interval_env_steps": 100} | evaluation
    many = {
        "simulation": {"num_processes": 4, "num_envs_per_process": per_process},
        "evaluation": evaluation,
    }
    few, enough = (
        {f"servers.{s}.limits.max_episodes": limit for s in ("one", "two")}
        for limit in (num_open - 1, num_open)
    )
    for problem, server_id in zip(problems(many | few), ("one", "two"), strict=True):
        assert problem.startswith(
            f"servers.{server_id}.limits.max_episodes: is {num_open - 1:,}, but {num_open:,} "
            f"environments play at the same time, {num_evaluated} of them in an evaluation"
        )
    assert problems(many | enough) == []


@pytest.mark.parametrize(
    ("tracker", "problem"),
    [
        ("wandb", "'wandb' needs wandb, not installed here; it comes with: "
         "pip install 'muxrl[wandb]'"),
        ("mlflow", "'mlflow' needs mlflow, not installed here; it comes with: "
         "pip install 'muxrl[mlflow]'"),
        ("wanb", "there is no tracker 'wanb' (one of your own is named "
         "'package.module:Tracker'); did you mean 'wandb'?"),
        ("tensorboard", "'tensorboard' is named 2 times; it gets each row once"),
        ("nowhere:Tracker", "'nowhere:Tracker' cannot be imported: ModuleNotFoundError: No module "
         "named 'nowhere'"),
    ],
)  # fmt: skip
def test_missing_trackers_are_refused(tracker, problem, monkeypatch, tmp_path):
    (tmp_path / "wandb").mkdir()  # W&B's offline runs make such a folder; it is no package
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trackers, "find_spec", in_the_current_folder)
    assert f"trackers: {problem}" in problems({"trackers": ["tensorboard", tracker]})


def in_the_current_folder(name):
    return importlib.machinery.PathFinder.find_spec(name, [os.getcwd()])
