"""Three libraries learn on one simulation, and go on after the run was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.faults.started import ENDS_S, PATIENCE_S, ROOT, Started, environment_of

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

SHORT = (
    "simulation.num_processes=1",
    "servers.qmix.settings.num_episodes_before_learning=2",
    "servers.qmix.settings.batch_size_episodes=2",
    "servers.rllib.settings={train_batch_size_per_learner: 100, minibatch_size: 50, num_epochs: 1}",
    "servers.sb3.settings.batch_env_steps=50",
    "evaluation.num_episodes=2",
    "evaluation.final_num_episodes=4",
    "evaluation.interval_env_steps=null",
    "checkpoint.interval_env_steps=200",
    "trackers=[]",
)
SERVERS = ("qmix", "rllib", "sb3")


def records(run: Path, server_id: str) -> list[dict[str, Any]]:
    path = run / f"metrics/{server_id}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def test_they_learn_side_by_side_and_go_on_after_a_kill(tmp_path: Path, temporary: Path) -> None:
    run = tmp_path / "run"
    started = Started.of_command(
        ["launch", "libraries", "--run-dir", str(run), "stop.env_steps=1000000", *SHORT],
        "libraries",
        temporary,
    )

    def saved() -> list[int]:
        return [int(path.parent.name) for path in run.glob("checkpoints/[0-9]*/manifest.json")]

    try:
        started.wait_for(
            "checkpoint of three that learn",
            lambda: len(saved()) > 1 and all(records(run, one) for one in SERVERS),
        )
        os.kill(started.popen.pid, signal.SIGKILL)
        started.popen.communicate()
        started.assert_nothing_is_left()
    finally:
        started.kill()
    at, before = max(saved()), records(run, "rllib")
    resumed = subprocess.run(
        [*started.popen.args[:3], "launch", "--resume", str(run), f"stop.env_steps={at + 1_100}"],  # type: ignore[index, misc]
        cwd=ROOT,
        env=environment_of(ROOT) | {"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S + ENDS_S,
        check=False,
    )
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    for server_id in SERVERS:
        last = records(run, server_id)[-1]
        assert last["env_steps"] > at
        assert last["learner"]
    after = records(run, "rllib")[-1]["learner"]["default"]
    steps = "num_module_steps_trained_lifetime"
    assert after[steps] > before[0]["learner"]["default"][steps]
    returns = json.loads((run / "summary.json").read_text())
    assert all(server_id in str(returns) for server_id in SERVERS)
