"""All shipped configs fit the JSON Schemas, and what `muxrl check` calls a mistake does not."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from muxrl.orchestrator import json_schema
from muxrl.orchestrator.config import load_config, packaged_configs, prepare, to_yaml
from muxrl.orchestrator.config.load import is_league, is_sweep
from muxrl.orchestrator.config.merge import read_yaml
from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.json_schema import KINDS, schema_text
from muxrl.orchestrator.league import load as league_load
from muxrl.orchestrator.sweeps import load as sweeps_load

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(
    file for file in (ROOT / "experiments").rglob("*.yaml") if "results" not in file.parts
)
Validators = dict[str, jsonschema.Draft7Validator]
MODELINE = "# yaml-language-server: $schema="

GOOD: dict[str, Any] = {
    "simulation": {"env": "gymnasium:CartPole-v1", "num_envs_per_process": 2},
    "servers": {"ppo": {"algorithm": "PPO", "agents": ["agent"], "settings": {"lr": 0.001}}},
    "stop": {"env_steps": 100},
}


def validator(kind: str) -> jsonschema.Draft7Validator:
    schema = json.loads(schema_text(kind))
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


@pytest.fixture(scope="module")
def validators() -> Validators:
    return {kind: validator(kind) for kind in KINDS}


def misfits(checked: jsonschema.Draft7Validator, tree: Any) -> list[str]:
    return [f"{error.json_path}: {error.message[:200]}" for error in checked.iter_errors(tree)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_committed_schema_is_that_of_the_classes(kind: str) -> None:
    """If this fails, run `make docs`."""
    committed = (json_schema.FOLDER / f"{kind}.json").read_text(encoding="utf-8")
    assert committed == schema_text(kind, installed=False)


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: str(file.relative_to(ROOT)))
def test_shipped_configs_fit(file: Path, validators: Validators) -> None:
    kind = "sweep" if is_sweep(file) else "league" if is_league(file) else "experiment"
    tree, _ = read_yaml(file)
    assert not misfits(validators[kind], tree)
    if file.parent.name in ("conf", "sweeps", "leagues"):
        (line,) = [x for x in file.read_text().splitlines() if x.startswith(MODELINE)]
        named = (file.parent / line.removeprefix(MODELINE)).resolve()
        assert named == json_schema.FOLDER / f"{kind}.json"


def test_configs_that_muxrl_writes_fit(validators: Validators) -> None:
    """Such configs have every key, with its default."""
    for name in packaged_configs():
        written = yaml.safe_load(to_yaml(load_config(name)))
        assert not misfits(validators["experiment"], written), name
    for name in packaged_configs("sweeps"):
        written = yaml.safe_load(to_yaml(sweeps_load.load_sweep(name)))
        assert not misfits(validators["sweep"], written), name
    for name in packaged_configs("leagues"):
        written = yaml.safe_load(to_yaml(league_load.load_league(name)))
        assert not misfits(validators["league"], written), name


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("simulaton", {}),
        ("simulation.nun_processes", 2),
        ("simulation.num_processes", "two"),
        ("simulation.respawn", "same"),
        ("simulation.gateway", "9900"),
        ("servers.ppo.algoritm", "PPO"),
        ("servers.ppo.algorithm", "PPPO"),
        ("servers.ppo.agents", "agent"),
        ("servers.ppo.settings.lrr", 0.1),
        ("servers.ppo.settings.lr", "fast"),
        ("servers.ppo.settings.mixing_embed_dim", 32),
        ("servers.ppo.model.fcnet_hidens", [64]),
        ("servers.ppo.model.fcnet_hiddens", 64),
        ("servers.ppo.model.lstm_cell_size", "wide"),
        ("servers.ppo.limits.max_episodes", None),
        ("stop.env_steps", "many"),
        ("stop.episode_return", {"ppo": "high"}),
        ("checkpoint.best", {"mode": "most"}),
        ("trackers", "tensorboard"),
    ],
)
def test_a_mistake_that_check_finds_is_found_by_the_schema(
    path: str, value: Any, validators: Validators
) -> None:
    assert not misfits(validators["experiment"], GOOD)
    tree = changed(path, value)
    with pytest.raises(ConfigError):
        prepare(load_config(tree))
    assert misfits(validators["experiment"], tree)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("seed", "${oc.env:SEED}"),
        ("servers.ppo.token", "???"),
        ("servers.ppo.algorithm", "ppo"),
        ("servers.ppo.algorithm", "my_package:Mine"),
        ("servers.ppo.settings.lr", [[0, 0.001], [1000, 0.0001]]),
        ("servers.ppo", {"command": ["train"], "settings": {"anything": 1}}),
        ("servers.ppo", {"algorithm": "PPO", "rl_module": "my:Module", "model": {"my_width": 3}}),
        ("servers.ppo.model.fcnet_bias_initializer", "zeros_"),
        ("servers.ppo.model.conv_filters", [[16, 4, 2], [32, 3, [2, 2], "valid"]]),
        ("simulation.kwargs", {"anything": {"goes": [1]}}),
        ("checkpoint.best", None),
        ("stop.metric_at_least", {"win": 1}),
    ],
)
def test_valid_values_fit(path: str, value: Any, validators: Validators) -> None:
    assert not misfits(validators["experiment"], changed(path, value))


@pytest.mark.parametrize(
    ("template", "key", "fits"),
    [
        ({}, "mixing_embed_dim", True),
        ({}, "clip_param", False),
        ({"algorithm": "PPO"}, "clip_param", True),
        ({"algorithm": "PPO"}, "mixing_embed_dim", False),
    ],
)
def test_a_template_has_the_algorithm_of_its_name_unless_it_names_one(
    template: dict[str, Any],
    key: str,
    fits: bool,
    validators: Validators,
) -> None:
    sweep = {"base": "chase", "algorithms": {"qmix": {**template, "settings": {key: 1}}}}
    assert (not misfits(validators["sweep"], sweep)) is fits


def changed(path: str, value: Any) -> dict[str, Any]:
    tree = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    place = tree
    for name in parents:
        place = place.setdefault(name, {})
    place[last] = value
    return tree
