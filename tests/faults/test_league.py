"""A league that is killed in mid-round goes on from the trial it was in."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import yaml
from tests.faults.started import Started
from tests.faults.test_sweep_faults import PATIENCE_S, files_of, num_finished, trials

# By day: each point of a league in `tests/orchestrator/league`, of a sweep in
# `sweeps/test_directory.py`.
pytestmark = [pytest.mark.faults, pytest.mark.ray, pytest.mark.night, pytest.mark.timeout(1500)]

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


def test_a_league_that_is_killed_in_mid_round_keeps_what_was_done(
    tmp_path: Path, temporary: Path
) -> None:
    file, folder = tmp_path / "hurt.yaml", tmp_path / "league"
    file.write_text(yaml.safe_dump(LEAGUE))
    arguments = ["league", str(file), "--league-dir", str(folder)]
    killed = Started.of_command(arguments, tmp_path.name, temporary)
    second = folder / "rounds" / "02"
    try:
        # The first round and the first trial of the second one are done.
        killed.wait_for("half of round 2", lambda: num_finished(second) == 1, PATIENCE_S)
        os.kill(killed.popen.pid, signal.SIGKILL)
        killed.wait()
        killed.assert_nothing_is_left(60.0, but=("ray::DashboardAgent", "ray::RuntimeEnvAgent"))
    finally:
        killed.kill()
    done = next(trial for trial in trials(second) if trial.is_finished)
    kept = files_of(second, done)
    first_games = (folder / "rounds" / "01" / "games.json").read_bytes()
    assert not (second / "games.json").exists()

    resumed = Started.of_command(["league", str(folder), "--resume"], tmp_path.name, temporary)
    try:
        assert resumed.wait(PATIENCE_S) == 0, resumed.output
        resumed.assert_nothing_is_left(60.0, but=("ray::DashboardAgent", "ray::RuntimeEnvAgent"))
    finally:
        resumed.kill()
    assert "round 1 of" not in resumed.output
    assert "2 trials, 1 of them finished before" in resumed.output
    assert files_of(second, done) == kept
    assert (folder / "rounds" / "01" / "games.json").read_bytes() == first_games
    assert [trial.status for trial in trials(second)] == ["done", "done"]
    told = json.loads((folder / "league.json").read_text())
    assert list(told["roles"]["main"]["ratings"]) == ["one @ 1", "one @ 2", "two @ 2", "random"]
    begun = [(row["member"], row["begins_with"]) for row in told["rounds"]]
    assert begun == [("one", "new weights"), ("one", "one @ 1"), ("two", "new weights")]
