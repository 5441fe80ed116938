"""`initialize_from` leads to a checkpoint whose policies fit, or says what does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muxrl.orchestrator.config.initial_weights import find_initial_weights
from muxrl.protocol.spaces import Box, Discrete
from muxrl.servers.checkpoint import ABOUT_FILE
from muxrl.servers.config import AgentPlan

SEES, DOES = Box((4,), "float32", -1.0, 1.0), Discrete(2)
AGENTS = {"a": AgentPlan("default", SEES, DOES)}


def checkpoint(folder: Path, **about: Any) -> Path:
    (folder / "learner_group" / "learner" / "rl_module").mkdir(parents=True)
    agent = {
        "policy": "default",
        "observation_space": msgspec.to_builtins(SEES),
        "action_space": msgspec.to_builtins(DOES),
    }
    note = {"format": 1, "algorithm": "PPO", "agents": {"x": {**agent, **about}}}
    (folder / ABOUT_FILE).write_text(json.dumps(note))
    return folder


def test_a_run_leads_to_its_last_checkpoint_of_the_server(tmp_path: Path) -> None:
    run = tmp_path / "run"
    saved = checkpoint(run / "checkpoints" / "120" / "ppo")
    (saved.parent / "manifest.json").touch()
    (run / "checkpoints" / "last").symlink_to("120")
    found = str(run / "checkpoints" / "last" / "ppo")
    assert find_initial_weights(str(run), "ppo", AGENTS) == (found, [])
    assert find_initial_weights(str(saved), "other", AGENTS) == (str(saved), [])
    _, (problem,) = find_initial_weights(str(run), "other", AGENTS)
    assert "no checkpoint 'last' of a server 'other'; give the folder of another one" in problem
    assert found in problem


@pytest.mark.parametrize(
    ("about", "story"),
    [
        ({"policy": "mine"}, "has no policy 'default', it has mine; name the policies alike"),
        ({"action_space": {"type": "discrete", "n": 3}}, "policy 'default' has the action space"),
        ({"observation_space": {"type": "box"}}, "policy 'default' has the observation space"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, about: dict[str, Any], story: str) -> None:
    saved = checkpoint(tmp_path / "saved", **about)
    _, (problem,) = find_initial_weights(str(saved), "ppo", AGENTS)
    assert story in problem


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    _, (problem,) = find_initial_weights(str(tmp_path / "nowhere"), "ppo", AGENTS)
    assert "no such folder" in problem
