"""Whole runs of trainers that people bring: RLlib's, PyTorch's, Stable-Baselines3's, numpy's."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.faults.started import ENDS_S, PATIENCE_S, ROOT, environment_of

pytestmark = [pytest.mark.faults, pytest.mark.ray, pytest.mark.timeout(600)]

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


def muxrl(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "muxrl", *arguments],
        cwd=folder,
        env=environment_of(ROOT),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S + ENDS_S,
        check=False,
    )


def last_record(folder: Path, server_id: str) -> dict[str, Any]:
    rows = (folder / f"run/metrics/{server_id}.jsonl").read_text().splitlines()
    record: dict[str, Any] = json.loads(rows[-1])
    return record


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


def test_an_error_in_learn_ends_the_run_with_its_sentence(folder: Path) -> None:
    with (folder / "bandit.py").open("a") as file:
        file.write("\n\nclass Broken(Bandit):\n    def learn(self, trajectories):\n"
                   "        raise ArithmeticError('the sums are gone')\n")  # fmt: skip
    done = muxrl(folder, "launch", "cues.yaml", "--run-dir", "run",
                 "servers.adviser.algorithm=bandit:Broken", *SHORT)  # fmt: skip
    assert done.returncode == 1
    sentence = "bandit:Broken.learn of policy 'default': ArithmeticError: the sums are gone"
    assert sentence in done.stdout + done.stderr


def test_a_class_that_cannot_act_is_refused_before_anything_starts(folder: Path) -> None:
    with (folder / "bandit.py").open("a") as file:
        file.write("\n\nclass TooMany(Bandit):\n    def act(self, rows):\n"
                   "        return np.zeros(len(rows) + 1, int)\n")  # fmt: skip
    done = muxrl(folder, "check", "cues.yaml", "servers.adviser.algorithm=bandit:TooMany")
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "muxrl: cues.yaml: server 'adviser': bandit:TooMany.act of policy 'default': expected an "
        "array of shape (1,), got shape (2,) of int64"
    )
