from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from muxrl.client.adapters import Copy, SimulationError, make_simulation
from muxrl.client.adapters.factory import fill_in

CUES = "muxrl.experiments.simulations.cue_game:CueGame"


def fails(**kwargs: Any) -> None:
    raise OSError("no display")


def nothing() -> None: ...


class Spaceless:
    possible_agents = ["a"]

    def step(self, actions: Any) -> None: ...


class Nobody(Spaceless):
    possible_agents: list[str] = []


class Namesakes(Spaceless):
    possible_agents = [1, "1"]


class Talking(gymnasium.Env):
    observation_space = spaces.Text(3)
    action_space = spaces.Discrete(2)


def poles() -> Any:
    return gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")


@pytest.mark.parametrize(
    ("env", "kwargs", "message"),
    [
        ("CartPole-v1", {}, "not of the form 'package.module:callable', 'gymnasium:ENV_ID', 'pet"),
        ("mpe2.simple_tga_v3:env", {}, "no module .*did you mean .*'mpe2.simple_tag_v3'"),
        ("nmpy:array", {}, "no module 'nmpy'; did you mean .*'numpy'"),
        ("muxrl.experiments.simulations.cue_game:CuGame", {}, "'CuGame'; did you mean 'CueGame'"),
        ("mpe2:simple_tag_v3", {}, "is a module; name .* as 'mpe2.simple_tag_v3:parallel_env'"),
        (
            "mpe2:simple_tga_v3",
            {},
            r"'mpe2' \(.*/mpe2/__init__.py\) has no .*; did you mean 'simple_tag",
        ),
        ("math:pi", {}, "a builtins.float, not something to call"),
        ("json:loads.x", {}, "'loads' has no 'x'"),
        (CUES, {"num_agent": 2}, "'num_agent'.*did you mean 'num_agents'"),
        (f"{__name__}:fails", {"n": 3}, r"kwargs \{'n': 3\} failed with OSError: no display"),
        ("gymnasium:CartPole-v99", {}, "failed with .*CartPole"),
        (f"{__name__}:nothing", {}, "returned None, which is no environment"),
        (f"{__name__}:dict", {}, "has no 'dict'"),
        (f"{__name__}:Spaceless", {}, "no observation space for agent 'a'.*observation_space"),
        (f"{__name__}:Nobody", {}, "lists no agents; set possible_agents"),
        (f"{__name__}:Namesakes", {}, "are the same text when"),
        (f"{__name__}:Talking", {}, "of agent 'agent': .*cannot travel.*; make it a Multi"),
        (f"{__name__}:poles", {}, "vector environment"),
    ],
)
def test_errors_say_what_failed_and_what_to_do(
    env: str, kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(SimulationError, match=message) as told:
        make_simulation(env, kwargs)
    assert repr(env) in str(told.value)


def test_a_missing_dependency_is_told_apart_from_a_missing_module(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "env_that_needs_more.py").write_text("import not_installed_anywhere\n")
    (tmp_path / "env_that_breaks.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SimulationError, match="needs the module 'not_installed_anywhere'"):
        make_simulation("env_that_needs_more:Env", {})
    with pytest.raises(SimulationError, match="failed with ZeroDivisionError: division by zero"):
        make_simulation("env_that_breaks:Env", {})


def test_nested_observations_are_read_and_nested_actions_written() -> None:
    from muxrl.client.adapters.env_values import reader, writer

    space = spaces.Tuple(
        [
            spaces.Dict({"x": spaces.Box(-1, 1, (2,), np.float32), "n": spaces.Discrete(4)}),
            spaces.Box(0, 255, (2,), np.uint8),
        ]
    )
    pixels = np.zeros(2, np.uint8)
    value = reader(space)(({"x": np.zeros(2), "n": np.int32(3)}, pixels))
    assert value[0]["x"].dtype == np.float32
    assert type(value[0]["n"]) is int
    assert value[1] is not pixels
    (from_network := np.zeros(2, np.float32)).setflags(write=False)
    given = writer(space)(({"x": from_network, "n": 3}, [1, 2]))
    assert space.contains(given)
    assert given[0]["x"].flags.writeable
    assert reader(space)("nonsense") == "nonsense", "left for the server to refuse"
    assert reader(space)(({"y": 1}, pixels))[0] == {"y": 1}


@pytest.mark.parametrize(
    ("given", "filled"),
    [
        ("{index}", 3),
        ("{5000+index}", 5003),
        ("{5000 + 10*index}", 5030),
        ("{2 * index}", 6),
        ("sim-{index}/{8000 + index}", "sim-3/8003"),
        ("{gateway} {indices} {}", "{gateway} {indices} {}"),
        ({"ports": ["{1 + index}", 7], "deep": {"id": "{index}"}}, None),
    ],
)
def test_a_copy_s_number_in_its_arguments(given: Any, filled: Any) -> None:
    assert fill_in(given, 3) == (filled or {"ports": [4, 7], "deep": {"id": 3}})


def numbered(port: int, config: Any = None) -> Any:
    assert port == 5002
    return gymnasium.make("CartPole-v1")


def of_rllib(env_config: Any) -> Any:
    assert env_config == {"port": 5002}
    assert (env_config.worker_index, env_config.vector_index, env_config.num_workers) == (2, 1, 4)
    return gymnasium.make("CartPole-v1")


@pytest.mark.parametrize("factory", ["numbered", "of_rllib"])
def test_an_environment_is_told_which_copy_it_is(factory: str) -> None:
    copy = Copy(index=2, worker_index=2, vector_index=1, num_workers=4)
    make_simulation(f"{__name__}:{factory}", {"port": "{5000 + index}"}, copy).close()
