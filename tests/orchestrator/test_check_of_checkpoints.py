"""`muxrl check` reads only the note of a checkpoint, and knows what its policies observe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.orchestrator.commanded import Muxrl

from muxrl.orchestrator.config import ExperimentConfig, load_config, prepare
from muxrl.orchestrator.config.facts import SimulationFacts
from muxrl.orchestrator.config.resolve import resolve
from muxrl.protocol.spaces import Box, Discrete, Space
from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE, STATE_FILE, note_of
from muxrl.servers.server import PolicyServer, ServerProblem

SEES = {"cartpole": Box((4,)), "other": Box((3,))}
BOUNDED = Box((4,), "float32", -1.0, 1.0)
SCALED, NORMALISED = {"scale_observations": "bounded"}, {"normalize_observations": True}


def cartpole(**servers: Any) -> ExperimentConfig:
    agents = {name: {"agents": ["agent"], **server} for name, server in servers.items()}
    return load_config({"simulation": {"env": "gymnasium:CartPole-v1"}, "servers": agents})


def crafted(
    tmp_path: Path, algorithm: str = "PPO", sees: Space = SEES["cartpole"], **server: Any
) -> Path:
    """Writes a checkpoint with the right note, but a state that cannot be loaded."""
    folder = tmp_path / "crafted"
    folder.mkdir()
    (folder / STATE_FILE).write_bytes(b"no arrays")
    facts = SimulationFacts({"agent": (sees, Discrete(2))})
    config = cartpole(ppo={"algorithm": algorithm, **server})
    plan = resolve(config, facts, needs_stop=False).servers["ppo"]
    note = {"format": 1, **note_of(plan), "env_steps": 400, "state_sizes": {"default": 0}}
    (folder / ABOUT_FILE).write_text(json.dumps(note))
    return folder


def check(muxrl: Muxrl, folder: Path, code: int = 2) -> str:
    """Returns what `muxrl check` prints for a config that plays the checkpoint."""
    plays = f"{{algorithm: FROZEN, agents: [agent], settings: {{checkpoint: '{folder}'}}}}"
    config = folder.with_name("play.yaml")
    config.write_text(
        "{simulation: {env: 'gymnasium:CartPole-v1'}, stop: {env_steps: 100}, "
        f"servers: {{it: {plays}}}}}"
    )
    return " ".join("".join(muxrl("check", config, code=code)).split())


@pytest.mark.parametrize("algorithm", ["PPO", "MAPPO", "DQN", "QMIX"])
def test_check_reads_the_note_and_refuses_a_policy_that_does_not_fit(
    algorithm: str, tmp_path: Path, muxrl: Muxrl
) -> None:
    does_not = ("policy 'default' of checkpoint", "observes")
    for name, code, words in (("cartpole", 0, ("FROZEN",)), ("other", 2, does_not)):
        (tmp_path / name).mkdir()
        told = check(muxrl, crafted(tmp_path / name, algorithm, SEES[name]), code)
        assert all(word in told for word in words)


def test_a_checkpoint_of_plain_rllib_is_refused_by_name(tmp_path: Path, muxrl: Muxrl) -> None:
    folder = tmp_path / "of_rllib"
    (folder / "learner_group").mkdir(parents=True)
    told = check(muxrl, folder)
    assert "has no muxrl.json, which says what its policies observe and do: plain RLlib" in told


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
    tmp_path: Path, edit: dict[str, Any], muxrl: Muxrl
) -> None:
    folder = crafted(tmp_path)
    note = json.loads((folder / ABOUT_FILE).read_text()) | edit
    (folder / ABOUT_FILE).write_text(json.dumps(note))
    assert "muxrl.json of checkpoint" in check(muxrl, folder)


def test_a_server_that_plays_the_checkpoint_loads_its_state(tmp_path: Path) -> None:
    """This shows that the other tests would notice if the state were loaded."""
    folder = crafted(tmp_path)
    config = cartpole(it={"algorithm": "FROZEN", "settings": {"checkpoint": str(folder)}})
    experiment = prepare(config, needs_stop=False)
    with pytest.raises(ServerProblem, match=r"server 'it': checkpoint .* cannot be loaded"):
        PolicyServer(experiment.servers["it"])


@pytest.mark.parametrize(
    ("sees", "server", "reason"),
    [
        (
            BOUNDED,
            SCALED,
            "has learned to read Box(shape=(4,), dtype='float32', low=-1.0, high=1.0), ",
        ),
        (
            Box((4,), "float64"),
            NORMALISED,
            "read Box(4,) float64, scaled or normalised, but 'agent' o",
        ),
        (Box((4,)), NORMALISED, ""),
        (Box((4,), "float64"), {}, ""),
    ],
    ids=["other bounds", "another dtype", "the same", "neither"],
)
def test_scaled_or_normalised_observations_must_be_of_the_same_space(
    sees: Space, server: dict[str, Any], reason: str, tmp_path: Path, muxrl: Muxrl
) -> None:
    assert reason in check(muxrl, crafted(tmp_path, sees=sees, **server), 2 if reason else 0)
