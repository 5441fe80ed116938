"""Whole runs of users' own trainers: RLlib's, PyTorch's, Stable-Baselines3's, numpy's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.faults.hosted import Host
from tests.faults.runs import rows
from tests.faults.started import ENDS_S, ROOT, Started, environment_of, muxrl
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


@pytest.mark.night  # by day: tests/servers/trainers, and below, a trainer in a process of its own
def test_five_kinds_of_trainer_learn_resume_and_are_evaluated(folder: Path) -> None:
    run = folder / "run"
    muxrl("launch", "cues.yaml", "--run-dir", "run", "stop.env_steps=400", *SHORT, cwd=folder)
    muxrl("launch", "--resume", "run", "stop.env_steps=1200", cwd=folder)
    about = json.loads((folder / "run/checkpoints/last/seller/muxrl.json").read_text())
    assert about["algorithm"] == "policy_gradient:PolicyGradient"
    assert about["env_steps"] >= 1_100
    assert about["iteration"] >= 11
    assert "penalty" in rows(run, "buyer")[-1]["learner"]["default"]
    last = rows(run, "adviser")[-1]
    assert last["learner"]["default"]["mean_reward"] > 0.5  # random actions earn 0.33
    assert last["iteration"] > 100
    muxrl("evaluate", "run", "--episodes", "10", "--replace", "buyer=random", cwd=folder)
    (found,) = (run / "evaluations").glob("*.json")
    assert set(json.loads(found.read_text())["servers"]) == LEARNERS


SLOW = """
import time
import gymnasium
import numpy as np

class Paid(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(1000)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(1, np.float32), float(action), False, self.t == 4, {}

class Slow:
    learns_from, batch_env_steps, acts_while_learning = "replay", 4, True

    def __init__(self, policy):
        self.num_updates = 0

    def act(self, rows):
        return np.full(len(rows), self.num_updates)

    def learn(self, trajectories):
        time.sleep(0.3)
        self.num_updates += 1
        return {}

    def state(self):
        return {"num_updates": self.num_updates}

    def load(self, state):
        self.num_updates = state["num_updates"]

    weights, set_weights = state, load
"""


def test_all_steps_before_an_evaluation_are_learned_first(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    config = {
        "simulation": {"env": "slow:Paid"},
        "servers": {"slow": {"algorithm": "slow:Slow", "agents": ["*"]}},
        "evaluation": {"interval_env_steps": 8, "num_episodes": 6, "final_num_episodes": 0},
        "stop": {"env_steps": 24},
        "trackers": [],
    }
    (tmp_path / "slow.yaml").write_text(yaml.safe_dump(config))
    muxrl("launch", "slow.yaml", "--run-dir", "run", cwd=tmp_path)
    evaluated = [row for row in rows(tmp_path / "run", "evaluation") if row["replaced"] is None]
    found = {row["env_steps"]: list(row["returns"].values()) for row in evaluated}
    # Each four env steps make an update, and all actions until the next are its number.
    assert found == {n: [[float(n)] * 6] for n in (0, 8, 16, 24)}


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


def test_a_trainer_that_diverges_ends_the_run_with_a_checkpoint_from_which_it_can_go_on(
    folder: Path,
) -> None:
    (folder / "spoilt.py").write_text(SPOILT)
    (folder / "alone.yaml").write_text(yaml.safe_dump(ALONE))
    ended = muxrl("launch", "alone.yaml", "--run-dir", "run", code=1, cwd=folder)
    assert "more than 10 updates of policy 'default' in a row were skipped" in ended.stderr
    assert "its learner has diverged; after it state['sums'] holds nan" in ended.stderr
    assert "the log of adviser warns of updates skipped 11×" in " ".join(ended.stdout.split())
    at = json.loads((folder / "run/checkpoints/last/manifest.json").read_text())["env_steps"]
    more = f"stop.env_steps={at + 200}", "servers.adviser.settings.num_sound=1000000"
    muxrl("launch", "--resume", "run", *more, cwd=folder)
    last = rows(folder / "run", "adviser")[-1]
    assert last["learner"]["default"]["num_skipped_updates"] == 11
    notes = json.loads((folder / "run/summary.json").read_text())["notes"]
    assert [n for n in notes if "the log of adviser warns of updates skipped 11×" in n]


ABSENT = """
import sys
from collections.abc import Callable
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("ray", "torch", "omegaconf", "yaml", "tree", "scipy"):
            raise ImportError(f"{name} is not here")
sys.meta_path.insert(0, Absent())
import bandit
import muxrl.serving
muxrl.serving.run(bandit.Bandit)
"""
"""The server's program, in which other packages than those of the extra ``serving`` are missing."""
BESIDE = """
import sys
from collections.abc import Callable
from muxrl import launch
run = launch(sys.argv[1], sys.argv[4:], run_dir=sys.argv[3], wait=False)
sys.stdin.readline()
"""
"""A script that launches a run, which ends with the script."""


# By day supervise/test_own_server.py resumes elsewhere, and test_resume_faults.py here.
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

    def has_learned() -> bool:
        is_there = (run / "metrics/others.jsonl").exists()
        return is_there and any(row["iteration"] > 0 for row in rows(run, "others"))

    def saved() -> list[Path]:
        return list(run.glob("checkpoints/[0-9]*/manifest.json"))

    try:
        started.wait_for("checkpoint", lambda: bool(saved()) and has_learned())
        (first,) = programs()
        os.kill(first, signal.SIGKILL)
        started.wait_for("restart", lambda: bool(programs()) and programs() != [first])
        before = len(saved())
        started.wait_for("checkpoint after the restart", lambda: len(saved()) > before)
        os.kill(started.popen.pid, signal.SIGKILL)
        started.popen.communicate()
        # The run notices that its launcher is gone, and ends in order.
        started.assert_nothing_is_left(ENDS_S)
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
        # Resuming removes what the killed run has left.
        muxrl(*goes_on, cwd=folder, TMPDIR=str(temporary))
        assert rows(run, "others")[-1]["env_steps"] > at
    assert rows(run, "others")[-1]["learner"]["default"]["mean_reward"] > 0.5
    summary = json.loads((run / "summary.json").read_text())
    assert "others" in str(summary)
    muxrl("evaluate", "run", "--episodes", "10", cwd=folder)
    (found,) = (run / "evaluations").glob("*.json")
    own = json.loads(found.read_text())["servers"]["others"]
    assert own["algorithm"] == "EXTERNAL"
    assert own["rule"] == "greedy"
    assert own["returns"]["mean"] > 9.0


LIBRARIES = (
    "simulation.num_processes=1",
    "servers.qmix.settings.num_episodes_before_learning=2",
    "servers.qmix.settings.batch_size_episodes=2",
    "servers.qmix.settings.min_sample_timesteps_per_iteration=100",
    "servers.rllib.settings={train_batch_size_per_learner: 100, minibatch_size: 50, num_epochs: 1}",
    "servers.sb3.settings.batch_env_steps=50",
    "evaluation.num_episodes=2",
    "evaluation.final_num_episodes=4",
    "evaluation.interval_env_steps=null",
    "checkpoint.interval_env_steps=200",
    "trackers=[]",
)
OF_LIBRARIES = ("qmix", "rllib", "sb3")


def test_three_libraries_learn_side_by_side_and_go_on_after_a_kill(
    start: Callable[..., Started], tmp_path: Path, host: Host
) -> None:
    run = tmp_path / "run"
    started = start(
        "launch", "libraries", "--run-dir", str(run), "stop.env_steps=1000000", *LIBRARIES
    )

    def saved() -> list[int]:
        return [int(path.parent.name) for path in run.glob("checkpoints/[0-9]*/manifest.json")]

    started.wait_for(
        "checkpoint of three that learn",
        lambda: (
            len(saved()) > 1
            and all((run / "metrics" / f"{one}.jsonl").exists() for one in OF_LIBRARIES)
            and all(rows(run, one) for one in OF_LIBRARIES)
        ),
    )
    os.kill(started.popen.pid, signal.SIGKILL)
    started.popen.communicate()
    started.assert_nothing_is_left()
    at, before = max(saved()), rows(run, "rllib")
    host.run("launch", "--resume", str(run), f"stop.env_steps={at + 600}", "--no-progress")
    for server_id in OF_LIBRARIES:
        last = rows(run, server_id)[-1]
        assert last["env_steps"] > at
        assert last["learner"]
    after = rows(run, "rllib")[-1]["learner"]["default"]
    steps = "num_module_steps_trained_lifetime"
    assert after[steps] > before[0]["learner"]["default"][steps]
    returns = json.loads((run / "summary.json").read_text())
    assert all(server_id in str(returns) for server_id in OF_LIBRARIES)
