"""Servers that act for a run's agents in evaluations and head to heads act as in the run."""

import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.orchestrator.comparisons.compared_runs import made_up_run

from muxrl.experiments.simulations.parallel_game import ParallelGame
from muxrl.orchestrator.comparisons.arena import Arena, random_players
from muxrl.orchestrator.comparisons.findings.compared_runs import read_run
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig, from_yaml, to_yaml
from muxrl.orchestrator.evaluations.evaluate import evaluate_run
from muxrl.orchestrator.evaluations.frozen import FrozenRun, from_checkpoint, policies_of
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE
from muxrl.servers.config import ResourcesConfig, ServerConfig

BOUNDS = [-1.0, 1.0]
AGENTS = ["agent_0", "agent_1", "agent_2"]


class Unbounded(ParallelGame):
    """A game in which an episode pays the square of its largest action."""

    def __init__(self) -> None:
        real = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        super().__init__(dict.fromkeys(AGENTS, real), dict.fromkeys(AGENTS, real), num_steps=20)

    def _begin(self) -> None:
        self._best = dict.fromkeys(AGENTS, 0.0)

    def _observe(self) -> dict[str, Any]:
        return {agent: np.zeros(2, np.float32) for agent in self.agents}

    def _play(self, actions: dict[str, Any]) -> dict[str, float]:
        before, self._best = self._best, dict(self._best)
        for agent, action in actions.items():
            self._best[agent] = max(self._best[agent], float(np.square(action).max()))
        return {agent: self._best[agent] - before[agent] for agent in actions}


def scripted(observation: Any) -> list[float]:
    return [0.5, -0.5]


UNBOUNDED = f"{__name__}:Unbounded"


def test_actions_keep_the_bounds_of_the_run(tmp_path: Path) -> None:
    server = ServerConfig("RANDOM", AGENTS, action_bounds=BOUNDS)
    config = ExperimentConfig(
        "x", simulation=SimulationConfig(UNBOUNDED), servers={"actors": server}
    )
    run = RunDirectory.create(tmp_path, "x", datetime(2026, 11, 21))
    run.write_config(to_yaml(config))
    for instead in ("random", f"{__name__}:scripted"):
        replaced = {"actors": instead}
        (served,) = FrozenRun(run, config, should_explore=False).players(replaced).values()
        assert served.server.action_bounds == BOUNDS
    found = evaluate_run(run.path, num_episodes=3, replace={"actors": "random"})
    largest = np.array(list(found.episode_returns.values()))
    assert largest.shape == (3, 3)
    assert (largest > 0.5).all()
    assert (largest <= 1.0).all()


def test_random_players_keep_the_bounds_of_the_run(tmp_path: Path) -> None:
    path = made_up_run(tmp_path, "PPO", "RANDOM", 0, 1.0, env=UNBOUNDED, kwargs={})
    config = from_yaml((path / "config.yaml").read_text())
    config.servers["hunters"].action_bounds = BOUNDS
    (path / "config.yaml").write_text(to_yaml(config))
    roles = {"hunters": ("agent_0", "agent_1"), "prey": ("agent_2",)}
    random = random_players(read_run(path), roles)
    with Arena(config, roles) as arena:
        for returns in (arena.play_at_random(random, range(3)), arena.play(random, range(3))):
            assert max(*returns["agent_0"], *returns["agent_1"]) <= 1.0
            assert max(returns["agent_2"]) > 1.0  # its server has no bounds


@pytest.mark.parametrize(
    ("named", "teams", "expected"),
    [
        ("abab", {}, {"a": ["agent_0", "agent_2"], "b": ["agent_1"]}),
        ("aab", {"pair": ["agent_0", "agent_1"]}, {"a": ["pair"], "b": ["agent_2"]}),
    ],
)
def test_a_checkpoint_says_which_policy_acts_for_which_agents(
    named: str, teams: dict[str, list[str]], expected: dict[str, list[str]]
) -> None:
    about = {"agents": {f"agent_{i}": {"policy": policy} for i, policy in enumerate(named)}}
    assert policies_of(about, AGENTS, teams) == expected


def served_from(tmp_path: Path, named: str, bound: float, server: ServerConfig) -> ServerConfig:
    """Returns a server that replaces another one, from a checkpoint for agents x, y, z."""
    space: dict[str, Any] = {"type": "box", "shape": [2]}
    if math.isfinite(bound):
        space |= {"low": -bound, "high": bound}
    agents = {
        agent: {"policy": policy, "action_space": space}
        for agent, policy in zip("xyz", named, strict=False)
    }
    note = {"format": 1, "algorithm": "PPO", "agents": agents, "groups": {}}
    (tmp_path / ABOUT_FILE).write_text(json.dumps(note))
    config = ExperimentConfig("x", simulation=SimulationConfig("e:E"), servers={"s": server})
    run = RunDirectory.create(tmp_path, "x", datetime(2026, 11, 21))
    plan = {"algorithm": "PPO", "agents": [a for a in server.agents if "*" not in a] or ["x", "y"]}
    run.write_plan({"servers": {"s": plan}})
    (served,) = FrozenRun(run, config, False).players({"s": str(tmp_path)}).values()
    return served.server


def test_a_policy_that_learned_on_a_gpu_is_evaluated_without_one(tmp_path: Path) -> None:
    learned = ServerConfig(
        "PPO", ["x"], action_bounds=BOUNDS, resources=ResourcesConfig(num_cpus=2, num_gpus=0.5)
    )
    served_from(tmp_path, "a", 2.0, learned)
    frozen = from_checkpoint(learned, tmp_path, ["x"], should_explore=True)
    assert frozen.resources == ResourcesConfig(num_cpus=2)
    assert frozen.action_bounds == BOUNDS  # the bounds of the run, not those of its space


@pytest.mark.parametrize(
    ("named", "agents", "expected"),
    [
        ("ab", ["x", "y"], {"a": ["x"], "b": ["y"]}),
        ("ab", ["x"], {"a": ["x"]}),
        ("aba", ["*"], {"a": ["x"], "b": ["y"]}),
        ("aa", ["x", "y"], {}),
        ("a", ["new"], {}),
    ],
)
def test_another_checkpoint_keeps_its_policies_agents(
    tmp_path: Path, named: str, agents: list[str], expected: dict[str, list[str]]
) -> None:
    """If the checkpoint has a single policy, it acts for agents of any name."""
    assert served_from(tmp_path, named, 1.0, ServerConfig("PPO", agents)).policies == expected


@pytest.mark.parametrize(("bound", "expected"), [(2.0, [-2.0, 2.0]), (math.inf, [])])
def test_another_checkpoint_acts_within_its_own_bounds(
    tmp_path: Path, bound: float, expected: list[float]
) -> None:
    server = ServerConfig("PPO", ["x"], action_bounds=BOUNDS)
    assert served_from(tmp_path, "a", bound, server).action_bounds == expected
