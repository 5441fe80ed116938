"""Whole sweeps and leagues are killed, or stopped: finished trials stay finished."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.faults.runs import arguments, assert_goes_forward, rows, small_server
from tests.faults.started import PAUSE_S, Started, muxrl

from muxrl.orchestrator.storage.checkpoints import CheckpointFolder
from muxrl.orchestrator.sweeps.directory import SweepDirectory, TrialRecord

pytestmark = [pytest.mark.faults, pytest.mark.ray, pytest.mark.timeout(1500)]

PATIENCE_S = 600.0
"""Time for four trials on a busy machine, where each takes a minute."""


def sweep(seeds: list[int], **kwargs: Any) -> dict[str, Any]:
    """Returns a sweep of small runs whose only server does not learn."""
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


def trials(folder: Path) -> list[TrialRecord]:
    """Returns the trials that have been recorded so far."""
    return SweepDirectory.open(folder).trials() if (folder / "trials.jsonl").exists() else []


def num_finished(folder: Path) -> int:
    return sum(trial.is_finished for trial in trials(folder))


def files_of(folder: Path, trial: TrialRecord) -> dict[str, bytes]:
    assert trial.run_dir is not None
    root = folder / trial.run_dir
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.mark.night  # by day: sweeps/test_directory.py; a larger budget: sweeps/test_on_asha.py
def test_an_interrupted_trial_goes_on_from_its_checkpoint_and_then_with_a_larger_budget(
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
    killed = start(*arguments(config, tmp_path, command="sweep"))

    def second_has_a_checkpoint() -> bool:
        second = trials(folder)[1:]
        runs = [folder / t.run_dir for t in second if t.status == "running" and t.run_dir]
        return any(list(run.glob("checkpoints/*/manifest.json")) for run in runs)

    killed.wait_for("a checkpoint of the second", second_has_a_checkpoint, PATIENCE_S)
    os.kill(killed.popen.pid, signal.SIGKILL)
    killed.wait()
    # Ray's processes notice by themselves, its agents after minutes; the trials must end.
    killed.assert_nothing_is_left(60.0, but=("ray::DashboardAgent", "ray::RuntimeEnvAgent"))
    done, before = trials(folder)
    assert (done.status, before.status) == ("done", "interrupted")
    assert before.run_dir is not None
    kept, run = files_of(folder, done), folder / before.run_dir
    newest = CheckpointFolder(run / "checkpoints").env_steps[0]
    assert newest < 5_000

    resumed = start("sweep", str(folder), "--resume")
    assert resumed.wait(PATIENCE_S) == 0, resumed.output
    resumed.assert_nothing_is_left(60.0, but=("ray::DashboardAgent", "ray::RuntimeEnvAgent"))
    assert "2 trials, 1 of them finished before, 1 continue from a checkpoint" in resumed.output
    assert "2 done" in resumed.output
    first, after = trials(folder)
    assert first == done
    assert files_of(folder, done) == kept
    assert (after.id, after.run_dir, after.status) == (before.id, before.run_dir, "done")
    assert after.env_steps >= 5_000
    assert len(list((folder / "runs").iterdir())) == 2
    assert_goes_forward(run, "all")
    joint = rows(run, "joint")
    assert [row["resumed_from"] for row in joint if "resumed_from" in row] == [newest]
    assert joint[0]["env_steps"] < newest < joint[-1]["env_steps"]

    more = ["experiment.stop.env_steps=6_000", "seeds=[0,1,2]"]
    grown = start("sweep", str(folder), "--resume", *more)
    assert grown.wait(PATIENCE_S) == 0, grown.output
    assert [trial.seed for trial in trials(folder)] == [0, 1, 2]
    assert all(t.status == "done" and t.env_steps >= 6_000 for t in trials(folder))
    resumed_from = [row["resumed_from"] for row in rows(run, "joint") if "resumed_from" in row]
    assert resumed_from == [newest, after.env_steps]


@pytest.mark.night  # by day: manage/test_stopping.py
def test_a_sweep_is_stopped_and_says_what_is_done_and_how_to_go_on(
    start: Callable[..., Started], tmp_path: Path
) -> None:
    folder = tmp_path / "sweep"
    command = start(*arguments(sweep(seeds=list(range(12))), tmp_path, command="sweep"))
    command.wait_for("a trial", lambda: num_finished(folder) >= 1, PATIENCE_S)
    trial = next(folder / t.run_dir for t in trials(folder) if t.run_dir)
    assert "is a trial of the sweep" in muxrl("stop", str(trial), code=2).stderr
    stopped = muxrl("stop", str(folder))
    assert command.wait(PATIENCE_S) == 130, command.output
    assert f"continue with: muxrl sweep {folder} --resume" in stopped.stdout
    assert f"{num_finished(folder)} done" in stopped.stdout
    command.assert_nothing_is_left(60.0, but=("ray::DashboardAgent", "ray::RuntimeEnvAgent"))


LEAGUE = {
    "name": "hurt",
    "base": "rock_paper_scissors",
    "experiment": {
        "stop": {"env_steps": 600},
        "evaluation": {"final_num_episodes": 0},
        "checkpoint": {"keep_every_env_steps": None},
        "trackers": [],
        "metrics_interval_s": 0.1,
    },
    "interchangeable": ["main", "rivals"],
    "members": {"one": {"role": "main"}, "two": {"role": "main", "first_round": 2}},
    "rounds": 2,
    "num_episodes": 10,
    "max_concurrent": 1,
}


@pytest.mark.night  # by day: each point alone, in `tests/orchestrator/league`
def test_a_league_that_is_killed_in_mid_round_keeps_its_finished_trials(
    start: Callable[..., Started], tmp_path: Path
) -> None:
    folder = tmp_path / "league"
    killed = start(*arguments(LEAGUE, tmp_path, command="league"))
    second = folder / "rounds" / "02"
    # The first round is done, and the first trial of the second.
    killed.wait_for("half of round 2", lambda: num_finished(second) == 1, PATIENCE_S)
    os.kill(killed.popen.pid, signal.SIGKILL)
    killed.wait()
    killed.assert_nothing_is_left(60.0, but=("ray::DashboardAgent", "ray::RuntimeEnvAgent"))
    done = next(trial for trial in trials(second) if trial.is_finished)
    kept = files_of(second, done)
    first_games = (folder / "rounds" / "01" / "games.json").read_bytes()
    assert not (second / "games.json").exists()

    resumed = start("league", str(folder), "--resume")
    assert resumed.wait(PATIENCE_S) == 0, resumed.output
    resumed.assert_nothing_is_left(60.0, but=("ray::DashboardAgent", "ray::RuntimeEnvAgent"))
    assert "round 1 of" not in resumed.output
    assert "2 trials, 1 of them finished before" in resumed.output
    assert files_of(second, done) == kept
    assert (folder / "rounds" / "01" / "games.json").read_bytes() == first_games
    assert [trial.status for trial in trials(second)] == ["done", "done"]
    told = json.loads((folder / "league.json").read_text())
    assert list(told["roles"]["main"]["ratings"]) == ["one @ 1", "one @ 2", "two @ 2", "random"]
    begun = [(row["member"], row["begins_with"]) for row in told["rounds"]]
    assert begun == [("one", "new weights"), ("one", "one @ 1"), ("two", "new weights")]
