"""Overrides as texts and as a mapping set the same values and are refused for the same mistakes."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muxrl.experiments.simulations.zero_cost import ZeroCost
from muxrl.orchestrator.config import (
    ExperimentConfig,
    StopConfig,
    from_yaml,
    load_config,
    to_yaml,
)
from muxrl.orchestrator.config.merge import diff
from muxrl.orchestrator.config.overrides import Overrides
from muxrl.orchestrator.errors import ConfigError
from muxrl.servers.config import ServerConfig

FILE = """\
simulation: {env: "gymnasium:CartPole-v1", kwargs: {max_episode_steps: 100}}
servers:
  ppo: {agents: [agent], settings: {lr: 0.001, gamma: 0.9}, token: "???"}
stop: {env_steps: 1000, time_s: 60}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some.yaml"
    path.write_text(FILE + "  # of the file\n")
    return path


def load(file: Path, overrides: Overrides) -> ExperimentConfig:
    token: Any = {"servers.ppo.token": "t"}
    if isinstance(overrides, dict):
        return load_config(file, {**token, **overrides})
    return load_config(file, ["servers.ppo.token=t", *overrides])


@pytest.mark.parametrize(
    ("texts", "mapping"),
    [
        (["seed=3"], {"seed": 3}),
        (["seed=3", "stop.env_steps=5"], {"seed": 3, "stop": {"env_steps": 5}}),
        (["stop.time_s=null"], {"stop.time_s": None}),
        (["servers.ppo.agents=[a, b]"], {"servers.ppo.agents": ("a", "b")}),
        (["servers.ppo.settings.lr=0.1"], {"servers": {"ppo": {"settings": {"lr": 0.1}}}}),
        (["servers.ppo.settings={}"], {"servers.ppo.settings": {}}),
        (["stop={}", "stop.env_steps=7"], {"stop": {}, "stop.env_steps": 7}),
        (["simulation.kwargs={}"], {"simulation": {"kwargs": {}}}),
    ],
)
def test_a_mapping_sets_the_same_values_as_texts(
    file: Path, texts: list[str], mapping: dict[str, Any]
) -> None:
    assert load(file, mapping) == load(file, texts)
    assert load(file, mapping) != load(file, [])


def test_an_empty_mapping_clears_what_is_there_and_a_section_goes_back_to_its_defaults(
    file: Path,
) -> None:
    assert load(file, []).servers["ppo"].settings == {"lr": 0.001, "gamma": 0.9}
    assert load(file, ["servers.ppo.settings={}"]).servers["ppo"].settings == {}
    again = load(file, {"servers.ppo.settings": {}, "servers.ppo.settings.gamma": 0.5})
    assert again.servers["ppo"].settings == {"gamma": 0.5}
    cleared = load(file, {"stop": {}})
    assert cleared.stop == StopConfig()
    assert cleared.servers == load(file, []).servers


def test_an_open_key_is_set_by_a_text_or_by_a_mapping(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"servers\.ppo\.token: is left open"):
        load_config(file)
    nested = {"servers": {"ppo": {"token": "secret"}}}
    assert load_config(file, nested).servers["ppo"].token == "secret"


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ({"seeed": 3}, "override 'seeed=3': seeed: unknown key 'seeed'; did you mean 'seed'?"),
        ({"stop.env_steps": "many"}, "stop.env_steps: must be an integer or null, got the text"),
        ({"stop..env_steps": 3}, "override 'stop..env_steps=3': must have a key.path"),
        ({"nowhere": {}}, "unknown key 'nowhere'"),
        ({"servers": {"ppo": {"agents": {}}}}, "servers.ppo.agents: must be a list of text"),
    ],
)
def test_mistakes_are_named_by_key(file: Path, overrides: dict[str, Any], problem: str) -> None:
    before = copy.deepcopy(overrides)
    with pytest.raises(ConfigError) as refused:
        load(file, overrides)
    assert problem in str(refused.value)
    assert overrides == before


def test_a_single_text_is_not_taken_for_a_list(file: Path) -> None:
    with pytest.raises(TypeError, match=r"are 'seed=3', one text; expected a list"):
        load_config(file, "seed=3")


def test_a_config_of_python_objects_equals_that_of_a_file(file: Path) -> None:
    said = load(file, ["servers.ppo.algorithm=PPO", "runs_dir=out"])
    ppo = ServerConfig(
        algorithm="PPO",
        agents=["agent"],
        settings={"lr": np.float32(0.5), "gamma": np.float64(0.9)},
        token="t",
    )
    config = ExperimentConfig(
        name="some",
        runs_dir=Path("out"),  # type: ignore[arg-type]
        simulation={"env": "gymnasium:CartPole-v1", "kwargs": {"max_episode_steps": 100}},  # type: ignore[arg-type]
        servers={"ppo": ppo},
        stop=StopConfig(env_steps=1000, time_s=60),
    )
    tree = {
        "name": "some",
        "runs_dir": "out",
        "simulation": config.simulation,
        "servers": {"ppo": dataclasses.asdict(ppo)},
        "stop": config.stop,
    }
    for source in (config, tree):
        assert load_config(source, {"servers.ppo.settings.lr": 0.001}) == said
    assert ppo.settings["lr"] == 0.5, "what was given stays as it was"
    assert load_config({"seed": 4}).name == "experiment"


def test_classes_and_functions_become_their_names_everywhere(file: Path) -> None:
    settings = {"policy": load_config, "dtype": np.float32, "widths": np.array([8, 8])}
    values = {"simulation": {"env": ZeroCost}, "servers.ppo.settings": settings}
    config = load(file, values)
    assert config.servers["ppo"].settings["dtype"] == "numpy:float32"
    assert config.servers["ppo"].settings["widths"] == [8, 8]
    assert config.simulation.env == "muxrl.experiments.simulations.zero_cost:ZeroCost"
    assert config.servers["ppo"].settings["policy"] == "muxrl.orchestrator.config.load:load_config"
    assert from_yaml(to_yaml(config)).simulation == config.simulation
    with pytest.raises(
        ConfigError, match=r"servers\.ppo\.settings\.policy: .*<lambda>' is a lambda"
    ):
        load(file, {"servers.ppo.settings": {"policy": lambda: 1}})


@pytest.mark.parametrize(
    ("ours", "theirs", "keys"),
    [
        ({"a": {"b": 1, "c": [1, 2]}}, {"a": {"b": 1, "c": [1, 3]}}, ["a.c"]),
        ({"a": {}}, {"a": {"b": 1}}, ["a.b"]),
        ({"a": None}, {"a": {"b": 1}}, ["a.b"]),
        ({"a": None}, {}, []),
        ({"a": 1}, {"b": 0}, ["a", "b"]),
    ],
)
def test_differing_keys_are_named_in_either_order(
    ours: dict[str, Any], theirs: dict[str, Any], keys: list[str]
) -> None:
    assert diff(ours, theirs) == keys
    assert set(diff(theirs, ours)) == set(keys)
