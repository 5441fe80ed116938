"""A whole run in a folder where the user's own files have the names of everyone else's modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.faults.started import ENDS_S, PATIENCE_S, ROOT

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

ENV = "import gymnasium\ndef make_env(): return gymnasium.make('CartPole-v1')\n"
CONFIG = """
simulation: {env: "client:make_env"}
servers:
  ppo:
    agents: [agent]
    settings: {train_batch_size_per_learner: 200, minibatch_size: 100, num_epochs: 1}
stop: {env_steps: 400}
evaluation: {final_num_episodes: 2}
trackers: ["tensorboard", "secrets_of_mine:Notes", "secrets_of_mine:UsedUp"]
"""
TRACKERS = """
import client  # the user's own

class Notes:
    def start(self, run):
        self.file = open(run.folder / "notes.txt", "a")
        return "mine"

    def log(self, numbers, env_steps):
        self.file.write("".join(f"{name}\\n" for name in numbers))

    def artifacts(self, files):
        self.file.write("".join(f"{file.name}\\n" for file in files))

    def end(self, state):
        self.file.write(f"{state}\\n")
        self.file.close()

class UsedUp(Notes):
    def log(self, numbers, env_steps):
        raise RuntimeError("the quota is used up")
"""


@pytest.mark.night  # by day: orchestrator/test_user_modules.py
def test_launch_finds_a_user_s_modules_in_ray_s_workers_and_python_its_own(tmp_path: Path) -> None:
    for name in ("client.py", "servers/", "experiments.py", "protocol/", "orchestrator/"):
        path = tmp_path / (f"{name}__init__.py" if name.endswith("/") else name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(ENV)
    for name in ("types", "queue", "random", "secrets", "statistics", "msgspec"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('the user\\'s is not meant')\n")
    (tmp_path / "secrets_of_mine.py").write_text(TRACKERS)
    (tmp_path / "mine.yaml").write_text(CONFIG)
    done = subprocess.run(
        # -P: as the installed command, which does not look into the current folder first
        [sys.executable, "-P", "-m", "muxrl", "launch", "mine.yaml", "--run-dir", "run"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S + ENDS_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    run = tmp_path / "run"
    assert (run / "checkpoints" / "last" / "ppo").is_dir()
    # Trackers of one's own are found, too; what goes wrong with one is said, once.
    assert done.stdout.count("without its tracker") == 1
    assert "'secrets_of_mine:UsedUp': RuntimeError: the quota is used up" in done.stdout
    assert list((run / "tensorboard").iterdir())
    names = (run / "notes.txt").read_text().splitlines()
    assert {"ppo/loss", "joint/env_steps_per_s", "evaluation/all_learned/agent"} <= set(names)
    assert names[-5:] == ["report.html", "summary.md", "summary.json", "learning.png", "done"]
