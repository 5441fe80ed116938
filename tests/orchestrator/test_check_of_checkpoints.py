"""`muxrl check` runs no code of a checkpoint, and still knows what its policies observe."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from muxrl.orchestrator import cli
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig, prepare, resolve
from muxrl.orchestrator.config.facts import SimulationFacts
from muxrl.protocol.spaces import Box, Discrete, Space
from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE, note_of
from muxrl.servers.config import ServerConfig
from muxrl.servers.server import PolicyServer, ServerProblem

SEES = {"cartpole": Box((4,)), "other": Box((3,))}


class Crafted:
    """Its pickle makes a file when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """Is there once the checkpoint's code has been run."""
    return tmp_path / "was here"


def crafted(
    tmp_path: Path,
    mark: Path,
    algorithm: str = "PPO",
    sees: Space = SEES["cartpole"],
    **server: Any,
) -> Path:
    """Writes a checkpoint with the right note and pickles that do harm."""
    folder = tmp_path / "crafted"
    for path in ("learner_group/learner/rl_module", "learner_group/learner/rl_module/default"):
        (folder / path).mkdir(parents=True)
        for name in ("class_and_ctor_args.pkl", "module_state.pkl", "state.pkl"):
            (folder / path / name).write_bytes(pickle.dumps(Crafted(mark)))
        (folder / path / "metadata.json").write_text("{}")
    (folder / "env_runner").mkdir()
    (folder / "env_runner" / "state.pkl").write_bytes(pickle.dumps(Crafted(mark)))
    facts = SimulationFacts({"agent": (sees, Discrete(2))})
    config = ExperimentConfig(
        "saved",
        simulation=SimulationConfig("gymnasium:CartPole-v1"),
        servers={"ppo": ServerConfig(algorithm, ["agent"], **server)},
    )
    plan = resolve(config, facts, needs_stop=False).servers["ppo"]
    note = {"format": 1, **note_of(plan), "env_steps": 400}
    (folder / ABOUT_FILE).write_text(json.dumps(note))
    return folder


def check(folder: Path) -> int:
    config = folder.with_name("play.yaml")
    config.write_text(
        "name: play\nsimulation: {env: 'gymnasium:CartPole-v1'}\nstop: {env_steps: 100}\n"
        "servers:\n  it:\n    algorithm: FROZEN\n    agents: [agent]\n"
        f"    settings: {{checkpoint: '{folder}'}}\n"
    )
    return cli.main(["check", str(config)])


@pytest.mark.parametrize("algorithm", ["PPO", "MAPPO", "DQN", "QMIX"])
def test_check_reads_the_note_and_runs_nothing(
    algorithm: str, tmp_path: Path, mark: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(crafted(tmp_path, mark, algorithm)) == 0
    assert "FROZEN" in capsys.readouterr().out
    assert not mark.exists()


@pytest.mark.parametrize("algorithm", ["PPO", "QMIX"])
def test_check_says_so_where_a_policy_does_not_fit(
    algorithm: str, tmp_path: Path, mark: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(crafted(tmp_path, mark, algorithm, SEES["other"])) == 2
    told = capsys.readouterr().err
    assert "policy 'default' of checkpoint" in told
    assert "observes" in told
    assert not mark.exists()


def test_check_of_a_plain_checkpoint_says_that_it_would_run_code(
    tmp_path: Path, mark: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = crafted(tmp_path, mark)
    (folder / ABOUT_FILE).unlink()
    assert check(folder) == 2
    told = capsys.readouterr().err
    assert "has no muxrl.json" in told
    assert "would run the code in them, which a check does not do" in told
    assert not mark.exists()


@pytest.mark.parametrize(
    "edit",
    [
        {"agents": None},
        {"agents": {"agent": {}}},
        {"algorithm": "PPOO"},
        {"algorithm": "FROZEN"},
        {"agents": {"agent": {"policy": "p", "group": None, "observation_space": {"type": "x"},
                              "action_space": {}}}},
    ],
    ids=str,
)  # fmt: skip
def test_a_note_that_was_edited_is_named(
    tmp_path: Path, mark: Path, edit: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = crafted(tmp_path, mark)
    note = json.loads((folder / ABOUT_FILE).read_text()) | edit
    (folder / ABOUT_FILE).write_text(json.dumps(note))
    assert check(folder) == 2
    assert "muxrl.json of checkpoint" in capsys.readouterr().err
    assert not mark.exists()


def test_a_server_that_plays_it_does_load_it(tmp_path: Path, mark: Path) -> None:
    """So that these tests would notice: the crafted files are the ones that are loaded."""
    folder = crafted(tmp_path, mark)
    config = ExperimentConfig(
        "play",
        simulation=SimulationConfig("gymnasium:CartPole-v1"),
        servers={"it": ServerConfig("FROZEN", ["agent"], settings={"checkpoint": str(folder)})},
    )
    experiment = prepare(config, needs_stop=False)
    assert not mark.exists()
    with pytest.raises(ServerProblem, match=r"server 'it': checkpoint .* cannot be loaded"):
        PolicyServer(experiment.servers["it"])
    assert mark.exists()


@pytest.mark.parametrize(
    ("sees", "server", "reason"),
    [
        (
            Box((4,), "float32", -1.0, 1.0),
            {"scale_observations": "bounded"},
            "has learned to read Box(shape=(4,), dtype='float32', low=-1.0, high=1.0), scaled or",
        ),
        (
            Box((4,), "float64"),
            {"normalize_observations": True},
            "has learned to read Box(4,) float64, scaled or normalised, but 'agent' observes",
        ),
        (Box((4,)), {"normalize_observations": True}, ""),
        (Box((4,), "float64"), {}, ""),
    ],
    ids=["other bounds", "another dtype", "the same", "neither"],
)
def test_what_was_scaled_or_normalised_must_be_what_is_observed(
    sees: Space,
    server: dict[str, Any],
    reason: str,
    tmp_path: Path,
    mark: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert check(crafted(tmp_path, mark, sees=sees, **server)) == (2 if reason else 0)
    assert " ".join(reason.split()) in " ".join(capsys.readouterr().err.split())
    assert not mark.exists()
