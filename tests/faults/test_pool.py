"""A run against a pool of a server's present and past: draws, metrics, resuming, evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.hosted import Host
from tests.faults.runs import arguments, rows, small_server

from muxrl.orchestrator.storage.checkpoints import CheckpointFolder

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

MEMBERS = {
    "now": {"live": "main"},
    "past": {"snapshots": "main", "last": 2},
    "chance": {"algorithm": "RANDOM"},
}


def test_a_learner_meets_its_past_and_goes_on_with_it(tmp_path: Path, host: Host) -> None:
    config = {
        "name": "pool",
        "simulation": {
            "env": "muxrl.experiments.simulations.rock_paper_scissors:RockPaperScissors",
            "num_envs_per_process": 4,
        },
        "servers": {
            "main": small_server("PPO", "agent_0"),
            "rivals": {
                "algorithm": "POOL",
                "agents": ["agent_1"],
                "settings": {"members": MEMBERS, "draw": "even"},
            },
        },
        "stop": {"env_steps": 3_000},
        "evaluation": {"final_num_episodes": 8, "should_compare_untrained": False},
        "checkpoint": {"keep_every_env_steps": 400, "keep_last": 1, "interval_s": None},
        "metrics_interval_s": 1.0,  # long enough that several snapshots are due in it
    }
    run = tmp_path / "run"
    host.run(*arguments(config, tmp_path))
    before = rows(run, "rivals")[-1]["learner"]
    snapshots = CheckpointFolder(run / "checkpoints").snapshots(400)
    assert [env_steps // 400 for env_steps in snapshots] == [1, 2, 3, 4, 5, 6, 7]
    past = before.keys() - {"now", "chance"}
    assert {"now", "chance"} <= before.keys()
    # Which snapshots were drawn depends on how many were made in a second.
    assert past & {f"past@{env_steps}" for env_steps in snapshots[1:]}
    assert past <= {f"past@{env_steps}" for env_steps in snapshots}
    assert before["chance"]["num_episodes"] > 20
    metrics = rows(run, "joint")[-1]["metrics"]
    assert metrics.keys() >= {f"return_against_rivals.{entry}" for entry in MEMBERS}
    assert metrics["return_against_rivals.now"].keys() == {"agent_0"}
    assert r"return\_against\_rivals.past" in (run / "summary.md").read_text()

    host.run("launch", "--resume", str(run), "stop.env_steps=3600")
    after = rows(run, "rivals")[-1]["learner"]
    grown = CheckpointFolder(run / "checkpoints").snapshots(400)
    assert grown[:7] == snapshots
    assert [env_steps // 400 for env_steps in grown[7:]] == [8, 9]
    for name in ("now", "chance"):
        assert after[name]["num_episodes"] > before[name]["num_episodes"]
    iterations = [row["iteration"] for row in rows(run, "rivals")]
    assert iterations == list(range(1, len(iterations) + 1))
    log = (run / "logs" / "rivals.log").read_text()
    assert "Traceback" not in log
