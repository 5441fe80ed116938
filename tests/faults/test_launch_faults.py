"""Whole runs, started as a user starts them, and hurt: they end, say why, and leave nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.run_directory import RunDirectory

pytestmark = pytest.mark.faults

ROOT = Path(__file__).parents[2]
PATIENCE_S = 85.0
"""For a run to start to learn; on a busy machine that takes many seconds."""
ENDS_S = 30.0
"""For a run to end."""


def small_server(algorithm: str, agent: str) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "train_batch_size_per_learner": 50,
        "min_sample_timesteps_per_iteration": 1,  # a record after every batch
    }
    if algorithm == "PPO":
        settings |= {"minibatch_size": 25, "num_epochs": 1}
    return {
        "algorithm": algorithm,
        "agents": [agent],
        "settings": settings,
        "model": {"fcnet_hiddens": [8]},
    }


def config(fault: str | None = None, at_step: int = 150) -> dict[str, Any]:
    """Returns an experiment of two servers and one simulation, which may have a fault."""
    kwargs: dict[str, Any] = {"num_agents": 2, "num_steps": 100}
    env = "experiments.simulations.zero_cost:ZeroCost"
    if fault is not None:
        env = "experiments.simulations.faulty:Faulty"
        kwargs |= {"fault": fault, "at_step": at_step % 100, "in_episode": at_step // 100}
    return {
        "name": "hurt",
        "simulation": {"env": env, "kwargs": kwargs, "num_processes": 1},
        "servers": {"ppo": small_server("PPO", "agent_0"), "a2c": small_server("A2C", "agent_1")},
        "stop": {"time_s": 600},
        "evaluation": {"final_num_episodes": 0},
        "checkpoint": {"at_end": False},
        "metrics_interval_s": 0.2,
        "tensorboard": False,
    }


@dataclass
class Process:
    """One process of this machine, as ``/proc`` tells of it."""

    pid: int
    started_at: str
    """With the pid, this names a process for ever."""
    environ: bytes
    command: str


def processes() -> Iterator[Process]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            if stat[0] in "ZX":
                continue
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            yield Process(int(entry.name), stat[19], (entry / "environ").read_bytes(), command)
        except OSError:
            continue  # it has just ended


@dataclass
class Run:
    """A ``muxrl launch`` in a process group of its own.

    Everything that it starts inherits `mark` in its environment, and so can be found again.
    """

    popen: subprocess.Popen[str]
    folder: Path
    mark: bytes
    began_at: float = field(default_factory=time.monotonic)
    output: str = ""

    def wait_for(self, what: str, is_there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_there():
            assert self.popen.poll() is None, f"ended before {what}: {self.popen.communicate()}"
            assert time.monotonic() < deadline, f"no {what} in {PATIENCE_S} s"
            time.sleep(0.05)

    def wait_for_learning(self) -> None:
        """Returns when simulations play and both servers have learnt."""
        files = [self.folder / "metrics" / f"{name}.jsonl" for name in ("ppo", "a2c", "joint")]
        self.wait_for("metrics", lambda: all(f.exists() and f.stat().st_size for f in files))

    def started(self) -> list[Process]:
        """Returns the living processes that descend from this run, itself left out."""
        return [p for p in processes() if self.mark in p.environ and p.pid != self.popen.pid]

    def pid_of(self, server_id: str) -> int:
        """Returns the process that has the server's log open as its stdout."""
        log = str(self.folder / "logs" / f"{server_id}.log")
        for process in self.started():
            try:
                if os.readlink(f"/proc/{process.pid}/fd/1") == log:
                    return process.pid
            except OSError:
                continue
        raise AssertionError(f"no process writes to {log}")

    def wait(self, timeout_s: float = ENDS_S) -> int:
        """Returns the exit code."""
        self.output, _ = self.popen.communicate(timeout=timeout_s)
        return self.popen.returncode

    def assert_nothing_is_left(self) -> None:
        deadline = time.monotonic() + 5.0
        while (left := self.started()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left, [p.command for p in left]

    def kill(self) -> None:
        """Ends all that is left, whatever became of the test."""
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.communicate()
        for _ in range(3):  # what is killed may just have started another one
            for process in self.started():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.1)


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for temporary files; short, because Ray's sockets are in it."""
    folder = Path(f"/tmp/mx{os.getpid()}")
    folder.mkdir()
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


@pytest.fixture
def launch(tmp_path: Path, temporary: Path) -> Iterator[Callable[[dict[str, Any]], Run]]:
    runs: list[Run] = []

    def start(experiment: dict[str, Any]) -> Run:
        path = tmp_path / "hurt.yaml"
        path.write_text(yaml.safe_dump(experiment))
        folder = tmp_path / "run"
        mark = f"MUXRL_TEST_MARK={os.getpid()}-{tmp_path.name}"
        name, _, value = mark.partition("=")
        command = [sys.executable, "-m", "orchestrator.cli", "launch", str(path)]
        popen = subprocess.Popen(
            [*command, "--run-dir", str(folder), "--no-progress"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, name: value, "TMPDIR": str(temporary), "COLUMNS": "200"},
        )
        runs.append(Run(popen, folder, mark.encode()))
        return runs[-1]

    yield start
    for run in runs:
        run.kill()


@pytest.fixture(autouse=True)
def _nothing_temporary_is_left(temporary: Path) -> Iterator[None]:
    yield
    assert not list(temporary.glob("muxrl-*")), "Ray's folder"


def assert_readable(run: Run) -> None:
    """The run directory holds a report, and can be read back."""
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary
    folder = RunDirectory.open(run.folder)
    assert (folder.path / "config.yaml").exists()
    for name in ("ppo", "a2c"):
        assert (folder.logs / f"{name}.log").stat().st_size > 0
    rows = (folder.metrics / "joint.jsonl").read_text().splitlines()
    assert all(json.loads(row) for row in rows)


def test_a_run_that_is_interrupted(launch: Callable[..., Run]) -> None:
    run = launch(config())
    run.wait_for_learning()
    os.killpg(run.popen.pid, signal.SIGINT)
    assert run.wait() == 130, run.output
    assert "interrupted" in run.output
    assert_readable(run)
    run.assert_nothing_is_left()


def test_a_run_that_is_told_again_and_again(launch: Callable[..., Run]) -> None:
    run = launch(config())
    run.wait_for_learning()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        os.kill(run.popen.pid, number)
        time.sleep(0.2)
    assert run.wait() == 130, run.output
    assert_readable(run)
    run.assert_nothing_is_left()


def test_a_run_that_is_interrupted_while_it_starts(launch: Callable[..., Run]) -> None:
    run = launch(config())
    run.wait_for("a server's log", lambda: (run.folder / "logs" / "ppo.log").exists())
    os.killpg(run.popen.pid, signal.SIGINT)
    assert run.wait() == 130, run.output
    run.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("fault", "stories"),
    [
        ("raise", ["InjectedFault: injected at step 50 of episode 1"]),
        ("exit", ["simulation-0 died"]),
        ("wrong_shape", ["refused t=51", "'agent_0'", "Box(8,) float32", "shape (9,)"]),
        ("nan", ["refused t=51", "'agent_0'", "NaN at index [1]"]),
    ],
)
def test_a_faulty_simulation(launch: Callable[..., Run], fault: str, stories: list[str]) -> None:
    run = launch(config(fault))
    assert run.wait(PATIENCE_S + ENDS_S) == 1, run.output
    problem = next(line for line in run.output.splitlines() if line.startswith("muxrl: "))
    for story in ["simulation-0", str(run.folder / "logs" / "simulation-0.log"), *stories]:
        assert story in problem
    if fault == "raise":
        assert "Traceback" in (run.folder / "logs" / "simulation-0.log").read_text()
    assert_readable(run)
    run.assert_nothing_is_left()


def test_a_server_that_is_killed(launch: Callable[..., Run]) -> None:
    run = launch(config())
    run.wait_for_learning()
    pid = run.pid_of("a2c")
    os.kill(pid, signal.SIGKILL)
    assert run.wait() == 1, run.output
    problem = next(line for line in run.output.splitlines() if line.startswith("muxrl: "))
    assert f"server 'a2c' (pid {pid}, A2C) died" in problem
    assert str(run.folder / "logs" / "a2c.log") in problem
    assert_readable(run)
    run.assert_nothing_is_left()
