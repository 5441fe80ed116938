"""The functions for scripts are light to import and check their arguments."""

import contextlib
import itertools
import sys
from pathlib import Path

import pytest
from tests.past.figures import unpack

import muxrl
from muxrl.orchestrator import api
from muxrl.orchestrator.api import launch, sweep
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.errors import ConfigError, NotARunDirectory
from muxrl.orchestrator.sweeps import runner
from muxrl.orchestrator.sweeps.schema import SweepConfig

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", sorted(muxrl.__all__))
def test_exported_names_exist_and_are_not_shadowed_by_modules(name):
    assert not isinstance(getattr(muxrl, name), type(sys))
    assert not (ROOT / "src" / "muxrl" / f"{name}.py").exists()
    assert not (ROOT / "src" / "muxrl" / name).exists()


def test_a_missing_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'lunch'"):
        _ = muxrl.lunch


def test_mistakes_are_refused_before_anything_is_started(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        launch("nowhere")
    with pytest.raises(NotARunDirectory, match="no such folder"):
        launch(tmp_path / "nowhere", resume=True)
    with pytest.raises(ConfigError, match=r"simulation\.env: is missing"):
        launch(ExperimentConfig(name="x"), run_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"simulation\.env: .*<lambda>' is a lambda"):
        launch(ExperimentConfig(simulation=SimulationConfig(env=lambda: None)), wait=False)
    for begin, wrong in itertools.product((launch, sweep), (None, ["tag"])):
        with pytest.raises(ConfigError, match="a config is a file's name, a mapping or a datac"):
            begin(wrong)
    with pytest.raises(ConfigError, match="the name of the config is empty"):
        launch("", {"servers": {}})
    with pytest.raises(ConfigError, match=r"simulation\.env: is missing"):
        sweep(SweepConfig(name="x"), sweep_dir=tmp_path / "sweep")
    assert list(tmp_path.iterdir()) == []


def test_runs_and_sweeps_get_their_overrides_and_directories(monkeypatch, tmp_path):
    unpack(tmp_path)
    calls = []
    for module, name in [
        (api, "run_experiment"), (runner, "start_sweep"), (runner, "resume_sweep"),
    ]:  # fmt: skip
        monkeypatch.setattr(module, name, lambda *args, console, **_: calls.append(args))
    monkeypatch.setattr(api, "early", lambda address: contextlib.nullcontext())
    launch("cartpole_ppo", {"seed": 3}, run_dir=tmp_path / "run")
    launch(tmp_path / "one", {"stop.env_steps": 440}, resume=True)
    sweep("tag", {"seeds": [3]}, sweep_dir=str(tmp_path / "new"))
    sweep(str(tmp_path / "swept"), ["seeds=[1,2,3]"], resume=True)
    (begun, run_dir), (resumed, folder), (table, sweep_dir), again = calls
    assert (begun.config.seed, run_dir) == (3, tmp_path / "run")
    assert (resumed.config.stop.env_steps, folder.path) == (440, tmp_path / "one")
    assert (table.seeds, sweep_dir) == ([3], tmp_path / "new")
    assert again == (tmp_path / "swept", ["seeds=[1,2,3]"])


def test_resume_is_for_directories():
    for config in (ExperimentConfig(), {"name": "x"}):
        with pytest.raises(TypeError, match="first argument is the run's directory, not a config"):
            launch(config, resume=True)
    with pytest.raises(TypeError, match="first argument is the sweep's directory"):
        sweep({"name": "x"}, resume=True)
    with pytest.raises(TypeError, match="first argument is the run's directory"):
        launch("here", resume=True, run_dir="there")
    with pytest.raises(TypeError, match="first argument is the sweep's directory"):
        sweep("here", resume=True, sweep_dir="there")
