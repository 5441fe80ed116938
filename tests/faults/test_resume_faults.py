"""A run all of whose processes are killed, and whose disk is lost, goes on by one command."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from tests.faults.hosted import Host
from tests.faults.runs import Run, assert_goes_forward, rows, small_server
from tests.faults.started import PAUSE_S

from muxrl.orchestrator.records.played import read_episodes, share_of
from muxrl.orchestrator.storage.checkpoints import CheckpointFolder
from muxrl.orchestrator.storage.versions import read_versions
from muxrl.orchestrator.supervise.simulation_process import EpisodeSeeds

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


def test_a_run_of_which_everything_is_killed_is_resumed(
    launch_alone: Callable[..., Run], tmp_path: Path, temporary: Path, host: Host
) -> None:
    config = {
        "name": "hurt",
        "simulation": {
            "env": "muxrl.experiments.simulations.zero_cost:ZeroCost",
            "kwargs": {"num_agents": 2, "num_steps": 100, "pause_s": PAUSE_S},
            "num_processes": 1,
            "record": 0.5,
            "parameters": {
                "wind": {
                    "lessons": list(range(100)),
                    "next_when": {"metric": "episode_length", "at_least": 1, "episodes": 2},
                }
            },
        },
        "servers": {"ppo": small_server("PPO", "agent_0"), "a2c": small_server("A2C", "agent_1")},
        "stop": {"time_s": 600},
        "evaluation": {"final_num_episodes": 2},
        "checkpoint": {"interval_env_steps": 500, "interval_s": None},
        "metrics_interval_s": 0.2,
        "storage_path": (tmp_path / "copies").as_uri(),
    }
    run, copy = tmp_path / "run", tmp_path / "copies" / "run"
    first = launch_alone(config)
    copied = CheckpointFolder(copy / "checkpoints")
    first.wait_for("copied checkpoints", lambda: bool(copied.env_steps and copied.env_steps[0]))
    os.kill(first.popen.pid, signal.SIGKILL)
    first.popen.communicate()
    first.assert_nothing_is_left()
    status = json.loads((run / "status.json").read_text())
    assert status["state"] == "running"
    shutil.rmtree(run)
    last_written = max(row["env_steps"] for row in rows(copy, "joint"))
    newest = copied.env_steps[0]
    assert not list(temporary.glob("muxrl-*"))

    until = f"stop.env_steps={last_written + 1_500}"
    output = host.run(
        "launch", "--resume", copy.as_uri(), "--run-dir", str(run), until, "--no-progress"
    )
    host.assert_nothing_is_left(5.0)
    place = run / "checkpoints" / str(newest)
    assert f"resuming at {newest:,} env steps from {place}" in output
    assert copied.env_steps[0] == rows(run, "joint")[-1]["env_steps"]
    assert (copy / "report.html").read_bytes() == (run / "report.html").read_bytes()

    assert_goes_forward(run)
    joint = rows(run, "joint")
    assert [row["resumed_from"] for row in joint if "resumed_from" in row] == [newest]
    lessons = [row["metrics"]["wind"]["__common__"] for row in joint if row.get("metrics")]
    assert lessons == sorted(lessons), "a lesson that was reached stays reached"
    assert lessons[0] < 2 < lessons[-1]
    recorded = list((run / "episodes" / "simulation-0").glob("*.parquet"))
    seeds = islice(EpisodeSeeds.of_process(0, "simulation-0"), joint[-1]["episodes"])
    # Recordings that ended after the checkpoint do not count; the last before it may be missing.
    assert {path.stem for path in recorded} <= {str(one) for one in seeds if share_of(one, 0.5)}
    assert recorded
    ((steps, parameters),) = read_episodes(recorded[0])
    assert len(steps) == 100 * 2
    assert parameters.keys() == {"wind"}
    assert all(rows(run, name)[-1]["env_steps"] > last_written for name in ("ppo", "a2c"))
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["num_resumed"]) == ("done", 1)
    assert f"resumed at {newest:,} env steps" in (run / "summary.md").read_text()
    versions = read_versions(run)
    (began_with,) = versions.pop("earlier")
    assert began_with == {**versions, "until_env_steps": newest}

    host.run("evaluate", str(run), "--episodes", "2")
    (result,) = (run / "evaluations").iterdir()
    servers = json.loads(result.read_text())["servers"]
    # The link points to another checkpoint once the run has gone on.
    last = (run / "checkpoints" / "last").readlink()
    assert servers["ppo"]["checkpoint"] == f"checkpoints/{last}/ppo"
