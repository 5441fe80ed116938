"""Whole sweeps with faults injected: finished trials stay finished."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.faults.runs import rows, small_server
from tests.faults.started import PAUSE_S, Started

from muxrl.orchestrator.storage.checkpoints import CheckpointFolder
from muxrl.orchestrator.sweeps.directory import SweepDirectory, TrialRecord

pytestmark = [pytest.mark.faults, pytest.mark.ray, pytest.mark.timeout(1500)]

PATIENCE_S = 600.0
"""For four trials on a busy machine, where each takes a minute."""


def sweep(seeds: list[int], **kwargs: Any) -> dict[str, Any]:
    """Returns a sweep of small runs whose one server does not learn."""
    return {
        "name": "hurt",
        "experiment": {
            "simulation": {
                "env": "muxrl.experiments.simulations.faulty:Faulty",
                "kwargs": {
                    "num_agents": 2,
                    "num_steps": 20,
                    "pause_s": PAUSE_S,
                    "fault": "raise",
                    "in_episode": 10**9,
                }
                | kwargs,
                "num_cpus": 0.25,
                "restarts": {"max": 0},
            },
            "stop": {"env_steps": 200},
            "evaluation": {"final_num_episodes": 0},
            "metrics_interval_s": 0.1,
            "trackers": [],
        },
        "roles": {"all": ["*"]},
        "algorithms": {"random": {"resources": {"num_cpus": 0.25}}},
        "seeds": seeds,
        "max_concurrent": 2,
        "report_interval_s": 0.5,
    }


@pytest.fixture
def start(tmp_path: Path, temporary: Path) -> Iterator[Callable[..., Started]]:
    commands: list[Started] = []

    def start(config: dict[str, Any] | None = None, *arguments: str) -> Started:
        if config is not None:
            path = tmp_path / "hurt.yaml"
            path.write_text(yaml.safe_dump(config))
            arguments = (str(path), "--sweep-dir", str(tmp_path / "sweep"), *arguments)
        commands.append(Started.of_command(["sweep", *arguments], tmp_path.name, temporary))
        return commands[-1]

    yield start
    for command in commands:
        command.kill()


def trials(folder: Path) -> list[TrialRecord]:
    """Returns the trials as recorded so far."""
    return SweepDirectory.open(folder).trials() if (folder / "trials.jsonl").exists() else []


def num_finished(folder: Path) -> int:
    return sum(trial.is_finished for trial in trials(folder))


def files_of(folder: Path, trial: TrialRecord) -> dict[str, bytes]:
    assert trial.run_dir is not None
    root = folder / trial.run_dir
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.mark.night  # by day: sweeps/test_directory.py; sweeps/test_on_asha.py, a larger budget
def test_a_trial_that_was_cut_goes_on_from_its_checkpoint_and_then_with_a_larger_budget(
    start: Callable[..., Started], tmp_path: Path
) -> None:
    folder = tmp_path / "sweep"
    config = sweep(seeds=[0, 1])
    config["max_concurrent"] = 1
    template = small_server("A2C", "*") | {"resources": {"num_cpus": 0.25}}
    config["algorithms"] = {"a2c": {k: v for k, v in template.items() if k != "agents"}}
    config["experiment"] |= {
        "stop": {"env_steps": 5_000},
        "checkpoint": {"interval_env_steps": 500, "interval_s": None},
    }
    killed = start(config)

    def second_has_a_checkpoint() -> bool:
        begun = [folder / t.run_dir for t in trials(folder) if t.status == "running" and t.run_dir]
        return num_finished(folder) == 1 and any(
            manifest for run in begun for manifest in run.glob("checkpoints/*/manifest.json")
        )

    killed.wait_for("a checkpoint of the second", second_has_a_checkpoint, PATIENCE_S)
    os.kill(killed.popen.pid, signal.SIGKILL)
    killed.wait()
    # Ray's processes are not told; each notices by itself, its agents after minutes. What
    # matters is that no trial continues.
    killed.assert_nothing_is_left(60.0, but=("ray::DashboardAgent", "ray::RuntimeEnvAgent"))
    done, before = trials(folder)
    assert (done.status, before.status) == ("done", "interrupted")
    assert before.run_dir is not None
    kept, run = files_of(folder, done), folder / before.run_dir
    newest = CheckpointFolder(run / "checkpoints").env_steps[0]
    assert newest < 5_000

    resumed = start(None, str(folder), "--resume")
    assert resumed.wait(PATIENCE_S) == 0, resumed.output
    resumed.assert_nothing_is_left(60.0, but=("ray::DashboardAgent", "ray::RuntimeEnvAgent"))
    assert "2 trials, 1 of them finished before, 1 to go on from a checkpoint" in resumed.output
    assert "2 done" in resumed.output
    first, after = trials(folder)
    assert first == done
    assert files_of(folder, done) == kept
    assert (after.id, after.run_dir, after.status) == (before.id, before.run_dir, "done")
    assert after.env_steps >= 5_000
    assert len(list((folder / "runs").iterdir())) == 2
    joint = rows(run, "joint")
    assert [row["resumed_from"] for row in joint if "resumed_from" in row] == [newest]
    assert [row["time_s"] for row in joint] == sorted({row["time_s"] for row in joint})
    assert joint[0]["env_steps"] < newest < joint[-1]["env_steps"]
    learned = rows(run, "all")
    assert [row["iteration"] for row in learned] == list(range(1, len(learned) + 1))

    more = ["experiment.stop.env_steps=6_000", "seeds=[0,1,2]"]
    grown = start(None, str(folder), "--resume", *more)
    assert grown.wait(PATIENCE_S) == 0, grown.output
    assert [trial.seed for trial in trials(folder)] == [0, 1, 2]
    assert all(t.status == "done" and t.env_steps >= 6_000 for t in trials(folder))
    resumed_from = [row["resumed_from"] for row in rows(run, "joint") if "resumed_from" in row]
    assert resumed_from == [newest, after.env_steps]
