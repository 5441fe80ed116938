"""Whole runs of simulations as users bring them."""

from __future__ import annotations

import functools
import signal
import socket
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
from tests.faults.hosted import Host
from tests.faults.started import ENDS_S, PATIENCE_S, ROOT, environment_of, muxrl

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

CONFIG = """
simulation: {env: "env:make", restarts: {max: 0}}
servers:
  ppo:
    agents: [agent]
    settings: {train_batch_size_per_learner: 200, minibatch_size: 100, num_epochs: 1}
stop: {env_steps: 400}
evaluation: {final_num_episodes: 4}
trackers: []
"""
NAN_NOW_AND_THEN = """
import gymnasium, numpy as np
class Env(gymnasium.ObservationWrapper):
    n = 0
    def observation(self, seen):
        self.n += 1
        return np.full_like(seen, np.nan) if self.n % 57 == 0 else seen
def make(): return Env(gymnasium.make('CartPole-v1'))
"""
EXTERNAL = f"""
simulation:
  env: external
  command: [{sys.executable}, sim.py, "{{gateway}}"]
  restarts: {{max: 0}}
  agents:
    agent:
      observation_space: {{type: box, shape: [1]}}
      action_space: {{type: discrete, n: 2}}
servers: {{ppo: {{algorithm: RANDOM, agents: [agent]}}}}
stop: {{env_steps: 20}}
evaluation: {{final_num_episodes: 2}}
trackers: []
"""
ONE_EPISODE = """
import sys
from muxrl.client.standalone.muxrl_client import EpisodeLost, PolicyClient, RunIsOver
open('begun.txt', 'a').write('x')
try:
    with PolicyClient(sys.argv[1]) as client:
        episode = client.start_episode()
        for _ in range(5):
            client.get_action(episode, {'agent': [0.0]})
            client.log_returns(episode, {'agent': 1.0})
        client.end_episode(episode, {'agent': [0.0]})
except (EpisodeLost, RunIsOver):
    pass
"""


class OnePortTwice(gymnasium.Wrapper):
    """A CartPole of which one may be open at a time, and two in all; a file notes when."""

    def __init__(self, made: str) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._made = Path(made)
        if self._made.exists() and self._made.read_text().count("made") == 2:
            raise OSError("no licence is left")
        self._socket = socket.create_server(("127.0.0.1", 45331))
        self._note("made")

    def close(self) -> None:
        self._socket.close()
        self._note("closed")

    def _note(self, what: str) -> None:
        with self._made.open("a") as file:
            file.write(f"{what} ")


def test_a_run_makes_one_simulator_at_a_time_and_ends_with_a_report_if_none_is_left_for_evaluation(
    tmp_path: Path, host: Host
) -> None:
    config, made, run = tmp_path / "mine.yaml", tmp_path / "made.txt", tmp_path / "run"
    brought = f"env: '{__name__}:OnePortTwice', kwargs: {{made: '{made}'}}"
    config.write_text(CONFIG.replace('env: "env:make"', brought))
    output = host.run("launch", str(config), "--run-dir", str(run))
    # One is made to be checked, one for training; the evaluation would need a third.
    assert made.read_text() == "made closed " * 2
    assert "no licence is left" in output
    assert f"muxrl evaluate {run}" in output
    assert "the evaluation at the end failed" in (run / "summary.md").read_text()
    assert (run / "checkpoints" / "last" / "ppo").is_dir()


@pytest.mark.night  # by day: tests/client/test_env_loop.py
def test_an_occasional_nan_costs_only_its_episode(tmp_path: Path) -> None:
    config = CONFIG.replace("restarts: {max: 0}", "restarts: {max: 0}, on_bad_value: episode")
    (tmp_path / "env.py").write_text(NAN_NOW_AND_THEN)
    (tmp_path / "mine.yaml").write_text(config)
    muxrl("launch", "mine.yaml", "--run-dir", "run", cwd=tmp_path)
    report = (tmp_path / "run" / "summary.md").read_text()
    assert "training episodes ended at a value that a server refused" in report


def test_the_program_of_the_readme_waits_for_its_run_and_ends_with_it(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = (ROOT / "experiments/examples/twenty_lines.py").read_text()
    (tmp_path / "loop.py").write_text(program.replace("9900", str(port)))
    options = [f"simulation.gateway.port={port}", "trackers=[]", "--run-dir", "run"]
    start = functools.partial(
        subprocess.Popen, cwd=tmp_path, env=environment_of(ROOT), text=True, stderr=subprocess.PIPE
    )
    loop = start([sys.executable, "loop.py"], stdout=subprocess.DEVNULL)
    run = start(
        [sys.executable, "-m", "muxrl", "launch", "twenty_lines", *options], stdout=subprocess.PIPE
    )
    try:
        assert "trying again for up to 300 s" in loop.stderr.readline()
        assert loop.stderr.readline() == f"connected to 127.0.0.1:{port}, 2 servers: ppo, a2c\n"
        while "waiting for a simulation" in (line := run.stdout.readline()) or " | " not in line:
            assert line, run.stderr.read()
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=PATIENCE_S)
        said = loop.communicate(timeout=ENDS_S)[1]
        assert (run.returncode, loop.returncode, said) == (130, 0, "")
    finally:
        run.kill()
        loop.kill()


@pytest.mark.night  # by day: test_gateway.py, of whoever plays on
@pytest.mark.parametrize(
    ("program", "code", "said"),
    [(ONE_EPISODE, 0, ""), ("", 1, "ended by itself, without an episode that it played")],
)
def test_a_program_that_played_an_episode_is_begun_again(
    tmp_path: Path, program: str, code: int, said: str
) -> None:
    (tmp_path / "sim.py").write_text(program)
    (tmp_path / "mine.yaml").write_text(EXTERNAL)
    done = muxrl("launch", "mine.yaml", "--run-dir", "run", code=code, cwd=tmp_path)
    assert said in done.stderr
    assert "started again" not in done.stdout + done.stderr
    if code == 0:
        # Five env steps each time, so that four make up the budget of 20.
        assert len((tmp_path / "begun.txt").read_text()) >= 4
