"""Snapshots of one run meet head to head; a best response gains less against later ones.

The game is won by the higher number: a trained policy plays 2 and cannot be beaten. Runs are played
in this process, without Ray.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.orchestrator.commanded import Muxrl
from tests.orchestrator.launch.duel import Duel
from tests.orchestrator.trained_here import train_here

from muxrl.orchestrator.comparisons import exploit as module
from muxrl.orchestrator.comparisons.compare import compare_runs
from muxrl.orchestrator.comparisons.exploit import BEST_RESPONSE, exploit
from muxrl.orchestrator.comparisons.findings.compared_runs import read_compared_runs
from muxrl.orchestrator.config import (
    EvaluationConfig,
    ExperimentConfig,
    SimulationConfig,
    prepare,
    to_yaml,
)
from muxrl.orchestrator.errors import CannotCompare, ConfigError, RunIsRunning
from muxrl.orchestrator.launch.result import RunResult
from muxrl.orchestrator.launch.resuming import locked
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import StatusFile
from muxrl.servers.config import ServerConfig

pytestmark = [pytest.mark.learning, pytest.mark.timeout(120)]

POINTS, NUM_EPISODES = (0, 480, 1600), 20
SIDES = ["left", "right"]
PPO = ServerConfig(
    "PPO",
    settings={"train_batch_size_per_learner": 160, "minibatch_size": 80, "num_epochs": 8,
              "lr": 0.01},
    model={"fcnet_hiddens": [16]},
)  # fmt: skip


@pytest.fixture(scope="module")
def run(rllib: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = ExperimentConfig(
        "duel",
        simulation=SimulationConfig(f"{Duel.__module__}:Duel"),
        servers={side: dataclasses.replace(PPO, agents=[side]) for side in SIDES},
        evaluation=EvaluationConfig(seed=500, should_explore=True),
    )
    folder = RunDirectory.create(tmp_path_factory.mktemp("runs"), "duel", datetime(2026, 11, 26))
    train_here(prepare(config, needs_stop=False), folder, POINTS, num_episodes=NUM_EPISODES)
    return folder.path


def test_ratings_of_snapshots_rise_with_training(run: Path, tmp_path: Path) -> None:
    found = compare_runs([run], num_episodes=30, snapshots=True)
    for table in found.head_to_head.by_label:
        ((label, curve),) = found.head_to_head.rating_curves(table).items()
        assert label == "ppo"
        assert [env_steps for env_steps, _ in curve] == list(POINTS)
        assert curve[-1][1].low > max(curve[0][1].high, 0)
    assert any("ppo is rated" in s and "after 1,600" in s for s in found.headline)
    frame = found.frame("ratings")
    assert list(frame["env_steps"][:3]) == list(POINTS)
    # All snapshots meet the same others, of which those of the same time are their partners.
    matches = found.head_to_head.matches
    assert sum(match["trained_together"] for match in matches) == 2 * len(POINTS)
    page = found.write(tmp_path / "out").read_text()
    assert "Ratings of left by env steps" in page


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(experiment: Any, *, hidden_metrics: str, **_: Any) -> RunResult:
        assert hidden_metrics == "return_against_"
        root = Path(experiment.config.runs_dir)
        name = f"best-{len([*root.iterdir()])}"
        folder = RunDirectory.create(root, name, datetime(2026, 11, 26))
        train_here(experiment, folder, POINTS, num_episodes=NUM_EPISODES)
        return RunResult(folder.path, "done", "", POINTS[-1], 1.0, None)

    monkeypatch.setattr(module, "run_experiment", launch)


@pytest.mark.usefixtures("in_process")
def test_a_best_response_gains_more_against_an_untrained_checkpoint(
    run: Path, tmp_path: Path, muxrl: Muxrl
) -> None:
    how = {"evaluation.final_num_episodes": NUM_EPISODES, "runs_dir": str(tmp_path)}
    early = exploit(run, "left", how, checkpoint="0", env_steps=POINTS[-1])
    assert [gain.env_steps for gain in early.gains] == list(POINTS)
    assert early.gains[-1].gain.low > 1  # random actions lose 8
    config = RunDirectory(early.launched.run_dir).read_config()
    assert config.servers["right"].algorithm == "FROZEN"
    assert config.servers["right"].settings["checkpoint"].endswith("/checkpoints/0/right")
    assert config.servers[BEST_RESPONSE].settings == PPO.settings
    assert config.stop.env_steps == POINTS[-1]
    late = [f"{key}={value}" for key, value in how.items()]
    told = muxrl("exploit", run, "--role", "left", "--env-steps", "1600", *late)
    assert "Best response of left" in told.out
    (written,) = {*tmp_path.glob("*/exploit.json")} - {early.launched.run_dir / "exploit.json"}
    gain = json.loads(written.read_text())["gains"][-1]["gain"]
    assert gain["mean"] < early.gains[-1].gain.mean / 2


@pytest.mark.parametrize(
    ("agents", "algorithm", "groups"),
    [
        ("abc", "", {"own": ["*"]}),
        ("ab", "", {BEST_RESPONSE: ["a", "b"]}),
        ("ab", "QMIX", {BEST_RESPONSE: ["a", "b"]}),
        ("ab", "MAPPO", {}),
    ],
)
def test_a_best_response_is_one_group_if_the_algorithm_needs_groups(
    agents: str, algorithm: str, groups: dict[str, list[str]]
) -> None:
    config = ExperimentConfig(servers={"s": ServerConfig("HAPPO", ["*"], groups={"own": ["*"]})})
    servers = {"s": SimpleNamespace(agents="abc")}
    played: Any = SimpleNamespace(
        config=config, servers=servers, server_of=dict.fromkeys("abc", "s")
    )
    assert module._learner(played, list(agents), algorithm).groups == groups


@pytest.mark.usefixtures("rllib")
@pytest.mark.parametrize(
    ("role", "text"),
    [
        ("left,right", "the role has all agents of run .* nobody to respond to"),
        ("middle", r"role 'middle' is no server of run .* matches no agent \(left, right\)"),
    ],
)
def test_a_role_that_cannot_respond_is_refused(run: Path, role: str, text: str) -> None:
    with pytest.raises(CannotCompare, match=text):
        exploit(run, role)


def test_a_run_that_has_not_ended_is_refused_by_exploit_and_compared_with_a_note(run: Path) -> None:
    """The checkpoints of a run that goes on may be removed at any moment."""
    folder = RunDirectory(run)
    status = StatusFile(folder)
    with locked(folder), pytest.raises(RunIsRunning):
        exploit(run, "left")
    (note,) = read_compared_runs([run]).notes
    assert "had not ended when these results were read" in note
    status.enter("done", 1600)
    assert not read_compared_runs([run]).notes


@pytest.mark.usefixtures("rllib")
@pytest.mark.parametrize(
    "override",
    [
        "simulation.kwargs.num_steps=3",
        "simulation.respawn=same_id",
        "servers.right.settings.checkpoint=elsewhere",
        "evaluation.should_explore=false",
        "servers.right.frame_stack=2",
    ],
)
def test_a_best_response_in_another_game_is_refused(run: Path, override: str) -> None:
    with pytest.raises(ConfigError) as refused:
        exploit(run, "left", [override], env_steps=100)
    key = override.partition("=")[0].removeprefix("servers.").replace("settings.", "")
    assert str(refused.value).startswith(f"{key}: ")


def test_a_run_with_one_checkpoint_has_no_curve(run: Path, tmp_path: Path) -> None:
    for name in ("config.yaml", "plan.json", "metrics"):
        (tmp_path / name).symlink_to(run / name)
    with pytest.raises(CannotCompare, match=r"they have 0 in common.*keep_every_env_steps"):
        compare_runs([tmp_path], snapshots=True)


def test_a_pool_of_the_run_s_own_past_meets_all_snapshots(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pooled"
    shutil.copytree(run, folder, symlinks=True)
    config = RunDirectory(folder).read_config()
    members = {"now": {"live": "left"}, "past": {"snapshots": "left", "last": 2}}
    config.servers["right"] = ServerConfig("POOL", ["right"], settings={"members": members})
    config.checkpoint.keep_every_env_steps = 480
    RunDirectory(folder).write_config(to_yaml(config))
    plan = json.loads((folder / "plan.json").read_text())
    plan["servers"]["right"] |= {"algorithm": "POOL", "learns": False}
    (folder / "plan.json").write_text(json.dumps(plan))
    found = compare_runs([folder], num_episodes=10, snapshots=True)
    left, right = found.head_to_head.by_label
    assert left.others == ("pool", "random")
    assert right.players == ("pool", "random")
