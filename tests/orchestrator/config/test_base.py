"""An experiment with a `base` gives only the values in which it differs from its base."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from muxrl.orchestrator import cli
from muxrl.orchestrator.config import ExperimentConfig, StopConfig, load_config
from muxrl.orchestrator.config.load import _OF_SWEEPS, to_yaml
from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.sweeps.load import load_sweep
from muxrl.orchestrator.sweeps.schema import SweepConfig

LONGER = """
base: cartpole_ppo
servers: {ppo: {settings: {lr: 0.25}}}
stop: {env_steps: 7}
"""


def refused(source: Path | dict | ExperimentConfig, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides)
    (problem,) = caught.value.problems
    return problem


def test_a_file_overrides_values_of_its_base(tmp_path: Path) -> None:
    (tmp_path / "longer.yaml").write_text(LONGER)
    config, base = load_config(tmp_path / "longer.yaml"), load_config("cartpole_ppo")
    assert config.simulation == base.simulation
    assert config.stop.episode_return == {"ppo": 450.0}
    assert (base.servers["ppo"].settings["lr"], base.stop.env_steps) == (0.0005, 200_000)
    assert (config.servers["ppo"].settings["lr"], config.stop.env_steps) == (0.25, 7)
    assert config.servers["ppo"].settings["num_epochs"] == 8
    assert (config.name, config.base) == ("longer", "")
    assert load_config(tmp_path / "longer.yaml", ["stop.env_steps=8"]).stop.env_steps == 8
    assert "base: ''" in to_yaml(config)  # so that the config in a run's directory stands alone


def test_an_empty_mapping_clears_what_the_base_has(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "base: cartpole_ppo\nservers: {ppo: {algorithm: A2C, settings: {}}}\nstop: {}\n"
    )
    config = load_config(tmp_path / "mine.yaml", ["stop.env_steps=5", "seed=3"])
    assert (config.servers["ppo"].settings, config.servers["ppo"].agents) == ({}, ["agent"])
    assert (config.stop, config.seed) == (StopConfig(env_steps=5), 3)
    (tmp_path / "empty.yaml").write_text("")
    assert load_config(tmp_path / "empty.yaml").servers == {}


def test_a_base_may_have_a_base_and_is_found_beside_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "longer.yaml").write_text(LONGER)
    (folder / "seeded.yaml").write_text("base: longer.yaml\nseed: 4\n")
    config = load_config(folder / "seeded.yaml")
    assert (config.seed, config.stop.env_steps, config.name) == (4, 7, "seeded")
    other = load_config(folder / "seeded.yaml", ["base=cartpole_a2c"])
    assert list(other.servers) == ["a2c"]
    monkeypatch.chdir(tmp_path)
    assert load_config({"base": "mine/seeded.yaml", "seed": 5}).stop.env_steps == 7
    assert load_config({"base": "mine/seeded.yaml"}).name == "experiment"
    sweep = load_sweep({"base": "mine/seeded.yaml", "seeds": [1, 2]})
    assert (sweep.experiment.seed, sweep.experiment.stop.env_steps) == (4, 7)


def test_a_file_with_a_base_alone_is_an_experiment_and_can_be_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "seeded.yaml").write_text("base: cartpole_ppo\nseed: 4\n")
    assert cli.main(["check", str(tmp_path / "seeded.yaml")]) == 0
    assert "seeded.yaml: can be launched; " in capsys.readouterr().out


def test_sweeps_are_known_by_keys_that_no_experiment_has() -> None:
    of_sweeps = {field.name for field in fields(SweepConfig)}
    of_experiments = {field.name for field in fields(ExperimentConfig)}
    assert of_sweeps - of_experiments == _OF_SWEEPS


def test_an_invalid_base_is_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text("base: two.yaml\nseed: 1\n")
    two.write_text("base: one.yaml\n")
    assert refused(one) == f"base: the experiment is based on itself: {one} on {two} on {one}"
    two.write_text("base: cartpole_pp\n")
    assert refused(one) == "no such file; did you mean 'cartpole_ppo'?"
    two.write_text("base: chase\nroles: {}\n")
    assert refused(one).startswith("this is a sweep, a table of runs; ")
    assert refused({"base": ["chase"]}).startswith("base: must be text, got the list ")
    said = "base: is for files and mappings; an ExperimentConfig has a value for every key"
    assert refused(ExperimentConfig(base="chase")) == said
    with pytest.raises(ConfigError, match=r"experiment\.base: is not read here; a sweep names it"):
        load_sweep({"experiment": {"base": "chase"}, "seeds": [1]})
