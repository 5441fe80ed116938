"""`muxrl compare` plays head to head with the policies that trained runs have saved."""

from __future__ import annotations

import dataclasses
import json
import shutil
from datetime import datetime
from pathlib import Path

import pytest
from tests.orchestrator.commanded import Muxrl
from tests.orchestrator.comparisons.compared_runs import rows
from tests.orchestrator.trained_here import train_here

from muxrl.orchestrator.comparisons.compare import Comparison, compare_runs
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig, prepare
from muxrl.orchestrator.errors import ConfigError
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.servers.config import ServerConfig

pytestmark = [pytest.mark.learning, pytest.mark.timeout(300)]

CHASE = SimulationConfig("muxrl.experiments.simulations.torus_chase:TorusChase", {"num_steps": 8})
PREDATORS = [f"predator_{i}" for i in range(3)]
PREY = ["prey_0", "prey_1"]
PACK = {"pack": PREDATORS}
SMALL = {"fcnet_hiddens": [16]}
QMIX = {"hidden_dim": 16, "agent": "mlp", "batch_size_episodes": 4,
        "num_episodes_before_learning": 4, "min_sample_timesteps_per_iteration": 80}  # fmt: skip
PPO = {"train_batch_size_per_learner": 80, "minibatch_size": 40, "num_epochs": 2, "lr": 0.01}
A2C = {"train_batch_size_per_learner": 80, "lr": 0.01}
FLEE = {"policy": "muxrl.experiments.examples.scripted_chase:flee", "kwargs": {"num_opponents": 3}}
HUNTERS = {
    "qmix": ServerConfig("QMIX", PREDATORS, groups=PACK, settings=QMIX),
    "ppo": ServerConfig("PPO", PREDATORS, settings=PPO, model=SMALL),
}
HUNTED = {
    "a2c": ServerConfig("A2C", PREY, settings=A2C, model=SMALL),
    "flee": ServerConfig("SCRIPTED", PREY, label="flee", settings=FLEE),
}
ASSIGNMENTS = [("qmix", "a2c"), ("ppo", "a2c"), ("ppo", "flee")]
NUM_EPISODES = 6


@pytest.fixture(scope="module")
def runs(rllib: None, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Gives runs of each assignment with two seeds: trained for a few updates, evaluated, saved."""
    root = tmp_path_factory.mktemp("runs")
    return [train(root, *players, seed) for players in ASSIGNMENTS for seed in (1, 2)]


def train(root: Path, hunters: str, hunted: str, seed: int) -> Path:
    config = ExperimentConfig(
        "chase",
        seed=seed,
        simulation=CHASE,
        servers={
            "predators": dataclasses.replace(HUNTERS[hunters]),
            "prey": dataclasses.replace(HUNTED[hunted]),
        },
    )
    run = RunDirectory.create(root, f"{hunters}-{hunted}-{seed}", datetime(2026, 11, 21))
    train_here(
        prepare(config, needs_stop=False),
        run,
        [160],
        num_episodes=NUM_EPISODES,
        replaces=True,
        first_seed=seed * 1000,
    )
    return run.path


@pytest.fixture(scope="module")
def comparison(runs: list[Path]) -> Comparison:
    return compare_runs(runs, num_episodes=NUM_EPISODES, should_meet=True)


def test_policies_that_trained_together_return_what_their_own_evaluation_found(
    comparison: Comparison,
) -> None:
    """Greedy policies return the same on the same episodes, if no seats or weights are mixed up."""
    runs = comparison.frames["runs"]
    own = dict(zip(zip(runs.run, runs.subject, strict=True), runs["return"], strict=True))
    together = [match for match in comparison.head_to_head.matches if match["trained_together"]]
    assert len(together) == 2 * 2 * 2  # two assignments without a script, two seeds, two roles
    for match in together:
        assert match["return"] == pytest.approx(own[match["run"], f"role:{match['role']}"])


def test_scripted_and_random_policies_are_played_alone(comparison: Comparison) -> None:
    first, second = rows(comparison, "standings", subject="role:prey", is_baseline=True)
    names = first["contestant"], second["contestant"]
    assert names == ("baseline: random", "baseline: random predator | flee prey")
    assert (
        second["mean"].mean > first["mean"].mean
    )  # a fleeing prey is caught less often by random predators than a random one


def test_the_command_writes_a_report_that_stands_alone(
    runs: list[Path], tmp_path: Path, muxrl: Muxrl
) -> None:
    out = tmp_path / "out"
    arguments = ["compare", *map(str, runs), "--episodes", "2", "--head-to-head", "--out", str(out)]
    shown = muxrl(*arguments).out
    assert "Side by side" in shown
    assert "Head to head, return of prey" in shown
    page = (out / "report.html").read_text()
    assert 'src="http' not in page
    assert "Head to head" in page
    for run in runs:
        assert run.name in page
    matches = json.loads((out / "comparison.json").read_text())["tables"]["matches"]
    assert {match["role"] for match in matches} == {"predator", "prey"}
    assert {(out / m["run"]).resolve() for m in matches if m["run"]} == {r.resolve() for r in runs}
    for file in out.iterdir():
        assert str(out.parent.resolve()).encode() not in file.read_bytes(), file.name


def test_a_pool_is_drawn_by_the_games_that_were_played(
    runs: list[Path], tmp_path: Path, muxrl: Muxrl
) -> None:
    muxrl("compare", *map(str, runs), "--episodes", "2", "--head-to-head", "--out", str(tmp_path))
    hunters = {
        run.name: {"algorithm": "FROZEN", "checkpoint": str(run / "checkpoints/last/predators")}
        for run in runs
    }
    pool = {"draw": "alpha_rank", "games": str(tmp_path), "members": hunters}
    servers = {
        "pool": ServerConfig("POOL", PREDATORS, groups=PACK, settings=pool),
        "prey": ServerConfig("SCRIPTED", PREY, settings=FLEE),
    }
    config = ExperimentConfig("pooled", simulation=CHASE, servers=servers)
    drawn = prepare(config, needs_stop=False).servers["pool"].settings["members"]
    assert sum(member["weight"] for member in drawn.values()) == pytest.approx(len(runs))
    by_label = {name.split("-")[0]: member["weight"] for name, member in drawn.items()}
    for name, member in drawn.items():  # runs of one label are drawn equally often
        assert member["weight"] == by_label[name.split("-")[0]]
    last = runs[0] / "checkpoints/last"
    earlier = shutil.copytree(last / "predators", tmp_path / "earlier")
    hunters[runs[0].name]["checkpoint"] = str(earlier)
    with pytest.raises(ConfigError, match=f"has no games of {runs[0].name} as predator, with the"):
        prepare(config, needs_stop=False)
