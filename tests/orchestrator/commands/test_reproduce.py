"""``muxrl reproduce`` names what differs from a run's software, and runs its experiment again."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from tests.faults.hosted import Host
from tests.faults.started import PATIENCE_S
from tests.orchestrator.commanded import Muxrl

from muxrl import RunResult
from muxrl.orchestrator.config import load_config, prepare
from muxrl.orchestrator.launch import whole_run
from muxrl.orchestrator.records.run_directory import RunDirectory, make_folder
from muxrl.orchestrator.storage import versions

COMMIT = "c0ffee" * 6 + "beef"
SAID = "loading packages\nlooking at the environment\n"
"""What the command prints while it waits."""
Launched = list[tuple[Any, Any]]
GAME = """
import gymnasium
def make(): return gymnasium.make("CartPole-v1")
"""


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """Gives a run that was planned, but never played, in an environment of the user's own."""
    # The commit does not depend on edits in this repository.
    monkeypatch.setattr(versions, "_git_commit", lambda folder: COMMIT)
    (tmp_path / "game_to_reproduce.py").write_text(GAME)
    monkeypatch.syspath_prepend(str(tmp_path))
    # Another test may have imported it.
    monkeypatch.delitem(sys.modules, "game_to_reproduce", raising=False)
    overrides = ["seed=3", "simulation.env=game_to_reproduce:make"]
    return make_folder(prepare(load_config("cartpole_ppo", overrides)), tmp_path / "run")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    """Gives a list to which each launched experiment and its directory are added."""
    calls: Launched = []

    def run_experiment(experiment: Any, run_dir: Any, **_: Any) -> Any:
        calls.append((experiment, run_dir))
        return types.SimpleNamespace(problem="it rained", exit_code=7)

    monkeypatch.setattr(whole_run, "run_experiment", run_experiment)
    return calls


def test_the_same_config_is_launched_again(
    recorded: RunDirectory, launched: Launched, tmp_path: Path, muxrl: Muxrl
) -> None:
    again = tmp_path / "again"
    told = muxrl("reproduce", recorded.path, "--run-dir", again, code=7)
    ((experiment, run_dir),) = launched
    assert experiment.config == recorded.read_config()
    assert (experiment.config.seed, run_dir) == (3, again)
    assert told == (SAID, "muxrl: it rained\n")


def test_check_says_what_differs_and_starts_nothing(
    recorded: RunDirectory, launched: Launched, tmp_path: Path, muxrl: Muxrl
) -> None:
    command = ["reproduce", str(recorded.path), "--check"]
    alike = "its software, environment and source are the same here"
    assert muxrl(*command).out == f"{SAID}{recorded.path}: {alike}\n"
    versions_file, packages = recorded.path / "versions.json", recorded.path / "packages.txt"
    now = json.loads(versions_file.read_text())
    versions_file.write_text(json.dumps(now | {"torch": "1.0", "platform": "elsewhere"}))
    packages.write_text(f"{packages.read_text()}nobody-has-this==3.2\n")
    (tmp_path / "game_to_reproduce.py").write_text(f"{GAME}# changed\n")
    told = muxrl(*command, code=1).out
    torch, source, others = told.removeprefix(SAID).splitlines()
    assert torch == f"differs: torch was 1.0, and is {now['torch']}"
    assert source.startswith("differs: the environment's source was ")
    missing = "differs: packages of the run that are missing here: nobody-has-this==3.2"
    assert others == f"{missing}; see {packages}"
    assert not launched


def test_an_earlier_source_and_changes_that_no_commit_holds_are_named(
    recorded: RunDirectory, monkeypatch: pytest.MonkeyPatch, muxrl: Muxrl
) -> None:
    file = recorded.path / "versions.json"
    earlier = {"env_steps": 0, "environment_source": "another"}
    dirty = {"git_commit": f"{COMMIT}-dirty"}
    file.write_text(json.dumps(json.loads(file.read_text()) | dirty | {"earlier": [earlier]}))
    monkeypatch.setattr(versions, "_git_commit", lambda folder: f"{COMMIT}-dirty")
    told = muxrl("reproduce", recorded.path, "--check", code=1).out
    commit, source = told.removeprefix(SAID).splitlines()
    was = "differs: muxrl's source was c0ffeec0ff-dirty"
    assert commit == f"{was}: it had uncommitted changes"
    assert source.startswith("differs: the environment's source was another, and is ")


def test_a_run_that_never_began_is_refused(tmp_path: Path, muxrl: Muxrl) -> None:
    run = RunDirectory.create_at(tmp_path / "run")
    err = muxrl("reproduce", run.path, code=2).err
    assert err == f"muxrl: {run.path} has no config.yaml: the run never began\n"


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_run_again_has_the_same_numbers(tmp_path: Path, host: Host) -> None:
    """With one simulation and a server that waits while it learns, nothing depends on the clock."""

    def muxrl(*arguments: str) -> int:
        return host.launch(arguments)[0].wait(PATIENCE_S)

    first, second = tmp_path / "first", tmp_path / "second"
    few = ["simulation.num_envs_per_process=1", "stop.env_steps=1500", "seed=3",
           "servers.ppo.settings={train_batch_size_per_learner: 250, minibatch_size: 50,"
           " num_epochs: 3}",
           "evaluation.final_num_episodes=3"]  # fmt: skip
    quiet = ["--no-progress", "--run-dir"]
    assert muxrl("launch", "cartpole_ppo", *few, *quiet, str(first)) == 0
    assert muxrl("reproduce", str(first), *quiet, str(second)) == 0
    runs = [RunResult.read(folder) for folder in (first, second)]
    shown = [run.frame()[["env_steps", "episode", "return"]].to_dict("list") for run in runs]
    assert shown[0] == shown[1]
    assert len(shown[0]["return"]) >= 6  # with the learned policies, and with random actions
    losses = [run.training().filter(like="loss").to_dict("list") for run in runs]
    assert len(losses[0]["learner.default.policy_loss"]) >= 5
    assert losses[0] == losses[1]
