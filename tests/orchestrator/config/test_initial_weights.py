"""`initialize_from` leads to a checkpoint whose policies fit, or the misfit is named."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.servers.scripted_store import make_plan

from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig, SimulationFacts
from muxrl.orchestrator.config.initial_weights import find_initial_weights
from muxrl.orchestrator.config.resolve import resolve
from muxrl.protocol.spaces import Box, Discrete
from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE, note_of
from muxrl.servers.config import AgentPlan, ServerConfig, ServerPlan

SEES, DOES = Box((4,), "float32", -1.0, 1.0), Discrete(2)
AGENTS = {"a": AgentPlan("default", SEES, DOES)}


def plan_of(server_id: str, **fields: Any) -> ServerPlan:
    return dataclasses.replace(make_plan(), server_id=server_id, agents=AGENTS, **fields)


def checkpoint(folder: Path, **about: Any) -> Path:
    folder.mkdir(parents=True)
    agent = {
        "policy": "default",
        "observation_space": msgspec.to_builtins(SEES),
        "action_space": msgspec.to_builtins(DOES),
    }
    reads = {"scale_observations": "none", "normalize_observations": False, "frame_stack": 1}
    agents = {"x": {**agent, **about}}
    note = {"format": 1, "algorithm": "PPO", "agents": agents, **reads}
    (folder / ABOUT_FILE).write_text(json.dumps(note))
    return folder


def test_a_run_leads_to_its_last_checkpoint_of_the_server(tmp_path: Path) -> None:
    run = tmp_path / "run"
    saved = checkpoint(run / "checkpoints" / "120" / "ppo")
    (saved.parent / "manifest.json").touch()
    (run / "checkpoints" / "last").symlink_to("120")
    # The path does not use the link, which moves when the run goes on.
    assert find_initial_weights(str(run), plan_of("ppo")) == (str(saved), [])
    assert find_initial_weights(str(saved), plan_of("other")) == (str(saved), [])
    _, (problem,) = find_initial_weights(str(run), plan_of("other"))
    assert "no checkpoint 'last' of a server 'other'; give the folder of another one" in problem
    assert str(run / "checkpoints" / "last" / "ppo") in problem


@pytest.mark.usefixtures("rllib")
def test_a_recorded_config_leads_to_the_same_weights_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = SimulationFacts({"a": (SEES, DOES), "b": (SEES, DOES), "c": (SEES, DOES)})
    frozen = {"algorithm": "FROZEN", "checkpoint": "last/ppo"}
    servers = {
        "ppo": ServerConfig("PPO", ["a"], initialize_from="last/ppo"),
        "old": ServerConfig("FROZEN", ["b"], settings={"checkpoint": "last/ppo"}),
        "pool": ServerConfig("POOL", ["c"], settings={"members": {"x": frozen}}),
    }
    config = ExperimentConfig("x", simulation=SimulationConfig("some:env"), servers=servers)
    monkeypatch.chdir(tmp_path)
    about = note_of(plan_of("ppo", algorithm="PPO"))
    saved = checkpoint(tmp_path / "120" / "ppo")
    (saved / ABOUT_FILE).write_text(json.dumps({"format": 1, **about}))
    Path("last").symlink_to("120")
    written = resolve(config, facts, needs_stop=False).config.servers
    assert written["ppo"].initialize_from == str(saved)
    assert written["old"].settings == {"checkpoint": str(saved)}
    assert written["pool"].settings == {"members": {"x": {**frozen, "checkpoint": str(saved)}}}


def test_a_space_that_names_its_defaults_fits_one_that_does_not(tmp_path: Path) -> None:
    """A plan that has come from another process may name defaults such as the dtype."""
    named = {**msgspec.to_builtins(SEES), "dtype": "float32"}
    saved = checkpoint(tmp_path / "saved", observation_space=named)
    assert named != msgspec.to_builtins(SEES)
    assert find_initial_weights(str(saved), plan_of("ppo")) == (str(saved), [])


def test_members_of_a_team_may_differ(tmp_path: Path) -> None:
    about = note_of(plan_of("ppo", algorithm="PPO"))
    first = about["agents"].pop("a")
    about["agents"] = {"x": first, "y": {**first, "action_space": {"type": "discrete", "n": 9}}}
    saved = checkpoint(tmp_path / "saved")
    (saved / ABOUT_FILE).write_text(json.dumps({"format": 1, **about}))
    assert find_initial_weights(str(saved), plan_of("ppo", algorithm="PPO"))[1] == []


@pytest.mark.parametrize(
    ("about", "story"),
    [
        ({"policy": "mine"}, "initialize_policies: {default: mine}"),
        ({"action_space": {"type": "discrete", "n": 3}}, "policy 'default' has the action space"),
        ({"observation_space": {"type": "box"}}, "policy 'default' has the observation space"),
    ],
)
def test_a_policy_that_does_not_fit_is_named(
    tmp_path: Path, about: dict[str, Any], story: str
) -> None:
    saved = checkpoint(tmp_path / "saved", **about)
    _, (problem,) = find_initial_weights(str(saved), plan_of("ppo"))
    assert story in problem


def test_policies_of_another_algorithm_or_that_read_in_another_way_are_refused(
    tmp_path: Path,
) -> None:
    """An older checkpoint does not name these settings: it neither scaled nor normalised."""
    saved = str(checkpoint(tmp_path / "saved"))
    for field, value, story in (
        ("algorithm", "A2C", f"{saved!r} was trained with PPO, but the server's algorithm is A2C$"),
        ("scale_observations", "bounded", "with scale_observations: .*give the server the same"),
        ("normalize_observations", True, "with normalize_observations: .*give the server the same"),
        ("frame_stack", 2, "was trained with frame_stack: .*give the server the same"),
    ):
        _, (problem,) = find_initial_weights(saved, plan_of("ppo", **{field: value}))
        assert re.search(story, problem)
    _, (problem,) = find_initial_weights(str(tmp_path / "nowhere"), plan_of("ppo"))
    assert "no such folder" in problem
