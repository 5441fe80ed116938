"""Whole runs of trainers that people bring: RLlib's, PyTorch's, Stable-Baselines3's, numpy's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.faults.started import ENDS_S, PATIENCE_S, ROOT, Started, environment_of
from tests.nights import at_night

from muxrl import RunResult

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

EXAMPLE = ROOT / "experiments" / "examples" / "own_trainer"
SHORT = (
    "evaluation.num_episodes=4",
    "evaluation.final_num_episodes=8",
    "evaluation.interval_env_steps=400",
    "trackers=[]",
    "servers.broker.settings.learning_starts=50",
)
LEARNERS = {"scouts", "buyer", "seller", "broker", "adviser"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "mine"))


def muxrl(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "muxrl", *arguments],
        cwd=folder,
        env=environment_of(ROOT) | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S + ENDS_S,
        check=False,
    )


def last_record(folder: Path, server_id: str) -> dict[str, Any]:
    rows = (folder / f"run/metrics/{server_id}.jsonl").read_text().splitlines()
    record: dict[str, Any] = json.loads(rows[-1])
    return record


@pytest.mark.night  # by day: tests/servers/trainers; one in a process of its own
def test_five_kinds_of_trainer_learn_resume_and_are_evaluated(folder: Path) -> None:
    begun = muxrl(folder, "launch", "cues.yaml", "--run-dir", "run", "stop.env_steps=400", *SHORT)
    assert begun.returncode == 0, begun.stdout + begun.stderr
    resumed = muxrl(folder, "launch", "--resume", "run", "stop.env_steps=1200")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    about = json.loads((folder / "run/checkpoints/last/seller/muxrl.json").read_text())
    assert about["algorithm"] == "policy_gradient:PolicyGradient"
    assert about["env_steps"] >= 1_100
    assert about["iteration"] >= 11
    assert "penalty" in last_record(folder, "buyer")["learner"]["default"]
    last = last_record(folder, "adviser")
    assert last["learner"]["default"]["mean_reward"] > 0.5  # random 0.33
    assert last["iteration"] > 100
    played = muxrl(folder, "evaluate", "run", "--episodes", "10", "--replace", "buyer=random")
    assert played.returncode == 0, played.stdout + played.stderr
    (found,) = (folder / "run/evaluations").glob("*.json")
    assert set(json.loads(found.read_text())["servers"]) == LEARNERS


SPOILT = """
import numpy as np
from bandit import Bandit

class Spoilt(Bandit):
    def __init__(self, policy, num_sound: int = 1_000_000):
        super().__init__(policy)
        self.num_sound, self.num_updates = num_sound, 0

    def learn(self, trajectories):
        self.num_updates += 1
        if self.num_updates > self.num_sound:
            self.sums[:] = np.nan
        return super().learn(trajectories)
"""
ALONE = {
    "simulation": {"env": "cues:Cues"},
    "servers": {
        "adviser": {
            "algorithm": "spoilt:Spoilt",
            "agents": ["adviser"],
            "settings": {"num_sound": 20},
        },
        "others": {"algorithm": "RANDOM", "agents": ["scout_*", "buyer", "seller", "broker"]},
    },
    "evaluation": {"final_num_episodes": 0},
    "stop": {"env_steps": 100_000},
    "trackers": [],
}


def test_one_that_is_always_spoilt_ends_with_a_checkpoint_from_which_it_goes_on(
    folder: Path,
) -> None:
    (folder / "spoilt.py").write_text(SPOILT)
    (folder / "alone.yaml").write_text(yaml.safe_dump(ALONE))
    ended = muxrl(folder, "launch", "alone.yaml", "--run-dir", "run")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "more than 10 updates of policy 'default' in a row were skipped" in ended.stderr
    assert "its learner has diverged; after it state['sums'] holds nan" in ended.stderr
    assert "the log of adviser warns of updates skipped 11×" in " ".join(ended.stdout.split())
    at = json.loads((folder / "run/checkpoints/last/manifest.json").read_text())["env_steps"]
    resumed = muxrl(folder, "launch", "--resume", "run", f"stop.env_steps={at + 200}",
                    "servers.adviser.settings.num_sound=1000000")  # fmt: skip
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert last_record(folder, "adviser")["learner"]["default"]["num_skipped_updates"] == 11
    notes = json.loads((folder / "run/summary.json").read_text())["notes"]
    assert [n for n in notes if "the log of adviser warns of updates skipped 11×" in n]


ABSENT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("ray", "torch", "omegaconf", "yaml", "tree", "scipy"):
            raise ImportError(f"{name} is not here")
sys.meta_path.insert(0, Absent())
import bandit
import muxrl.serving
muxrl.serving.run(bandit.Bandit)
"""
"""The server's process, as in an environment with the extra ``serving`` alone."""
BESIDE = """
import sys
from muxrl import launch
run = launch(sys.argv[1], sys.argv[4:], run_dir=sys.argv[3], wait=False)
sys.stdin.readline()
"""
"""A script beside which the run goes on: it ends with it."""


# By day: supervise/test_own_server.py goes on elsewhere, and test_resume_faults.py here.
@pytest.mark.parametrize("is_resumed", at_night([False, True], [True]))
def test_a_server_in_a_process_of_its_own_is_killed_resumed_and_evaluated(
    folder: Path, temporary: Path, is_resumed: bool
) -> None:
    (folder / "own.py").write_text(ABSENT)
    config = yaml.safe_load((folder / "cues.yaml").read_text())
    config["servers"] = {
        "scouts": config["servers"]["scouts"],
        "others": {
            "command": [sys.executable, "own.py"],
            "agents": ["buyer", "seller", "broker", "adviser"],
            "settings": {"epsilon": 0.2},
        },
    }
    config["checkpoint"] = {"interval_env_steps": 300}
    (folder / "own.yaml").write_text(yaml.safe_dump(config))
    run = folder / "run"
    beside = ["-c", BESIDE]
    started = Started.of_program(
        [
            *(sys.executable, *(["-m", "muxrl", "launch"] if is_resumed else beside)),
            *("own.yaml", "--run-dir", "run", "stop.env_steps=1000000", *SHORT[:3]),
        ],
        "own-server",
        temporary,
        env=environment_of(ROOT),
        cwd=folder,
        stdin=subprocess.PIPE,
    )

    def programs() -> list[int]:
        return [p.pid for p in started.started() if p.command.split()[1:] == ["own.py"]]

    def iteration() -> int:
        path = run / "metrics/others.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return int(json.loads(lines[-1])["iteration"]) if lines else 0

    def saved() -> list[Path]:
        return list(run.glob("checkpoints/[0-9]*/manifest.json"))

    try:
        started.wait_for("checkpoint", lambda: bool(saved()) and iteration() > 0)
        (first,) = programs()
        os.kill(first, signal.SIGKILL)
        started.wait_for("restart", lambda: bool(programs()) and programs() != [first])
        before = len(saved())
        started.wait_for("checkpoint after the restart", lambda: len(saved()) > before)
        os.kill(started.popen.pid, signal.SIGKILL)
        started.popen.communicate()
        started.assert_nothing_is_left(ENDS_S)  # a run that ends in order
    finally:
        started.kill()
    log = (run / "logs/others.log").read_text()
    assert "servers.others.command has ended by SIGKILL" in log
    result = RunResult.read(run)
    if not is_resumed:
        assert (result.outcome, result.exit_code) == ("interrupted", 130)
        assert not result.training().empty
    else:
        at = max(int(path.parent.name) for path in saved())
        goes_on = ["launch", "--resume", "run", f"stop.env_steps={at + 400}"]
        # It removes what the run that was killed has left.
        resumed = muxrl(folder, *goes_on, TMPDIR=str(temporary))
        assert resumed.returncode == 0, resumed.stdout + resumed.stderr
        assert last_record(folder, "others")["env_steps"] > at
    assert last_record(folder, "others")["learner"]["default"]["mean_reward"] > 0.5
    summary = json.loads((run / "summary.json").read_text())
    assert "others" in str(summary)
    played = muxrl(folder, "evaluate", "run", "--episodes", "10")
    assert played.returncode == 0, played.stdout + played.stderr
    (found,) = (run / "evaluations").glob("*.json")
    own = json.loads(found.read_text())["servers"]["others"]
    assert own["algorithm"] == "EXTERNAL"
    assert own["rule"] == "greedy"
    assert own["returns"]["mean"] > 9.0
