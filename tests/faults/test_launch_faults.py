"""Whole runs with faults injected: each ends, says why, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import resource
import select
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from tests.faults.hosted import Host
from tests.faults.started import ENDS_S, PATIENCE_S, PAUSE_S, Started
from tests.nights import at_night

from muxrl.experiments.simulations.faulty import Faulty
from muxrl.experiments.simulations.zero_cost import ZeroCost
from muxrl.orchestrator.launch.resuming import find_checkpoint
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.storage.checkpoints import CheckpointFolder

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


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


def config(fault: str | None = None, at_step: int = 150, max_restarts: int = 0) -> dict[str, Any]:
    """Returns an experiment of two servers and one simulation, which may have a fault."""
    restarts = {"restarts": {"max": max_restarts}}
    kwargs: dict[str, Any] = {"num_agents": 2, "num_steps": 100, "pause_s": PAUSE_S}
    env = "muxrl.experiments.simulations.zero_cost:ZeroCost"
    if fault is not None:
        env = "muxrl.experiments.simulations.faulty:Faulty"
        kwargs |= {"fault": fault, "at_step": at_step % 100, "in_episode": at_step // 100}
    return {
        "name": "hurt",
        "simulation": {"env": env, "kwargs": kwargs, "num_processes": 1} | restarts,
        "servers": {
            "ppo": small_server("PPO", "agent_0") | restarts,
            "a2c": small_server("A2C", "agent_1") | restarts,
        },
        "stop": {"time_s": 600},
        "evaluation": {"final_num_episodes": 0},
        "checkpoint": {"at_end": False},
        "metrics_interval_s": 0.2,
        "trackers": [],
    }


@dataclass
class Run(Started):
    """A ``muxrl launch``."""

    folder: Path = Path()

    def wait_for_learning(self) -> None:
        """Waits until simulations play and both servers have learned."""
        files = [self.folder / "metrics" / f"{name}.jsonl" for name in ("ppo", "a2c", "joint")]
        self.wait_for("metrics", lambda: all(f.exists() and f.stat().st_size for f in files))

    def pid_of(self, server_id: str) -> int:
        """Returns the process that has the server's log open as its stdout."""
        pid = self.writer_of(self.folder / "logs" / f"{server_id}.log")
        assert pid is not None, f"no process writes the log of {server_id}"
        return pid


@dataclass
class HostedRun(Run):
    """A ``muxrl launch`` in the host's process."""

    host: Host = field(default_factory=Host)

    def interrupt(self) -> None:
        os.kill(self.popen.pid, signal.SIGINT)

    def assert_nothing_is_left(self, patience_s: float = 5.0, but: Sequence[str] = ()) -> None:
        self.host.assert_nothing_is_left(patience_s)

    def kill(self) -> None:
        self.host.kill()


def _arguments(experiment: dict[str, Any], folder: Path, *options: str) -> list[str]:
    path = folder / "hurt.yaml"
    path.write_text(yaml.safe_dump(experiment))
    return ["launch", str(path), "--run-dir", str(folder / "run"), *(options or ["--no-progress"])]


@pytest.fixture
def launch_alone(tmp_path: Path, temporary: Path) -> Iterator[Callable[..., Run]]:
    """Launches as people do: in a process of its own."""
    runs: list[Run] = []

    def start(experiment: dict[str, Any], *options: str, **streams: Any) -> Run:
        arguments = _arguments(experiment, tmp_path, *options)
        runs.append(Run.of_command(arguments, tmp_path.name, temporary, **streams))
        runs[-1].folder = tmp_path / "run"
        return runs[-1]

    yield start
    for run in runs:
        run.kill()


@pytest.fixture
def launch(tmp_path: Path, host: Host) -> Iterator[Callable[[dict[str, Any]], Run]]:
    """Launches in the session's host, where the fault spares the command itself."""
    runs: list[HostedRun] = []

    def start(experiment: dict[str, Any]) -> Run:
        launched, mark = host.launch(_arguments(experiment, tmp_path))
        runs.append(HostedRun(cast(Any, launched), mark, tmp_path / "run", host))
        return runs[-1]

    yield start
    for run in runs:
        host.end(cast(Any, run.popen))


def assert_readable(run: Run) -> None:
    """Asserts that the run directory holds a report, can be read back, and says how it ended."""
    summary = json.loads((run.folder / "summary.json").read_text())
    status = json.loads((run.folder / "status.json").read_text())
    state = {0: "done", 1: "failed", 130: "interrupted"}[run.popen.returncode]
    assert (status["state"], summary["states"]) == (state, [state])
    assert status["pid"] == run.popen.pid
    assert status["ended_at"] >= status["started_at"]
    if state == "done":
        assert status["cause"] == ""
    else:
        assert status["cause"].startswith(summary["causes"][0])
        assert (
            f"ended as {state}: {summary['causes'][0]}" in (run.folder / "summary.md").read_text()
        )
    folder = RunDirectory.open(run.folder)
    assert (folder.path / "config.yaml").exists()
    for name in ("ppo", "a2c"):
        assert (folder.logs / f"{name}.log").stat().st_size > 0
    rows = (folder.metrics / "joint.jsonl").read_text().splitlines()
    assert all(json.loads(row) for row in rows)


@pytest.mark.night  # by day: test_stop.py
def test_a_run_that_is_interrupted(launch_alone: Callable[..., Run]) -> None:
    run = launch_alone(config() | {"checkpoint": {"at_end": True}})
    run.wait_for_learning()
    run.interrupt()
    assert run.wait() == 130, run.output
    assert "interrupted" in run.output
    resume = f"'muxrl launch --resume {run.folder}' goes on from its checkpoint at "
    assert run.output.count("--resume") == run.output.count(resume) == 1, run.output
    assert_readable(run)
    run.assert_nothing_is_left()


@pytest.mark.night  # by day: a terminal that is closed; supervise/test_signals.py
def test_a_run_that_gets_signal_after_signal(launch_alone: Callable[..., Run]) -> None:
    run = launch_alone(config())
    run.wait_for_learning()
    deadline = time.monotonic() + ENDS_S
    for number in itertools.cycle((signal.SIGTERM, signal.SIGINT)):
        run.popen.send_signal(number)  # does nothing once it has ended
        time.sleep(0.02)
        if run.popen.poll() is not None or time.monotonic() > deadline:
            break
    assert run.wait() == 130, run.output
    assert_readable(run)
    run.assert_nothing_is_left()


def test_a_checkpoint_that_cannot_be_written_fails_the_run(launch: Callable[..., Run]) -> None:
    run = launch(config() | {"stop": {"env_steps": 2_000}, "checkpoint": {"at_end": True}})
    run.wait_for_learning()
    checkpoints = run.folder / "checkpoints"
    checkpoints.rmdir()
    checkpoints.write_text("no folder")
    assert run.wait(PATIENCE_S) == 1, run.output
    problem = next(line for line in run.output.splitlines() if line.startswith("muxrl: "))
    assert f"no checkpoint: [Errno 20] Not a directory: '{checkpoints}" in problem
    assert_readable(run)
    run.assert_nothing_is_left()


def test_a_refused_checkpoint_is_an_alarm_until_one_is_written(
    launch: Callable[..., Run],
) -> None:
    run = launch(
        config()
        | {"stop": {"time_s": 600}, "checkpoint": {"interval_env_steps": 200, "at_end": True}}
    )
    checkpoints = run.folder / "checkpoints"
    run.wait_for_learning()

    def status() -> dict[str, Any]:
        found: dict[str, Any] = json.loads((run.folder / "status.json").read_text())
        return found

    run.wait_for("a checkpoint", lambda: (checkpoints / "last").exists())
    checkpoints.rename(run.folder / "aside")
    checkpoints.write_text("no folder")
    run.wait_for("an alarm", lambda: status()["checkpoint_problem"])
    assert "Not a directory" in status()["checkpoint_problem"]
    assert status()["state"] == "running"
    checkpoints.unlink()
    (run.folder / "aside").rename(checkpoints)
    run.wait_for("the end of it", lambda: not status()["checkpoint_problem"])
    run.interrupt()
    assert run.wait() == 130, run.output
    (warning,) = [w for w in status()["warnings"][""] if w["what"] == "checkpoints refused"]
    assert "Not a directory" in warning["text"]
    summary = (run.folder / "summary.md").read_text()
    assert f"checkpoints refused {warning.get('num', 1)}×, first at " in summary
    assert_readable(run)


@contextlib.contextmanager
def _read(descriptor: int) -> Iterator[None]:
    """Reads what comes, so that nobody waits to write it."""
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            if select.select([descriptor], [], [], 0.1)[0]:
                os.read(descriptor, 65_536)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        is_over.set()
        reader.join()


def test_a_terminal_that_is_closed_ends_a_run_cleanly(launch_alone: Callable[..., Run]) -> None:
    """As a dropped ssh does: SIGHUP to all of its processes, and no output from then on."""
    master, terminal = os.openpty()
    run = launch_alone(
        config() | {"checkpoint": {"at_end": True}},
        "--address=",  # with the live table
        **dict.fromkeys(("stdin", "stdout", "stderr"), terminal),
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(terminal)
    with _read(master):
        run.wait_for_learning()
    os.close(master)  # the system tells all processes of the terminal
    assert run.wait() == 130  # nothing can be shown: see its status.json
    assert_readable(run)
    for name in ("ppo", "a2c"):
        assert (run.folder / "checkpoints" / "last" / name).is_dir()
    run.assert_nothing_is_left()


@pytest.mark.night  # by day: a terminal that is closed
def test_a_run_goes_on_when_nobody_reads_its_output(launch_alone: Callable[..., Run]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    run = launch_alone(
        config() | {"stop": {"env_steps": 2_000}},
        "--address=",
        stdout=writer,
        stderr=writer,
    )
    os.close(writer)
    assert run.wait(PATIENCE_S + ENDS_S) == 0
    assert_readable(run)
    run.assert_nothing_is_left()


@pytest.mark.night  # by day: a directory that is removed; trackers
def test_a_full_disk_ends_a_run_by_name(launch_alone: Callable[..., Run]) -> None:
    run = launch_alone(config() | {"trackers": ["tensorboard"], "checkpoint": {"interval_s": 1}})
    run.wait_for_learning()
    checkpoints = CheckpointFolder(run.folder / "checkpoints")
    run.wait_for("a checkpoint with steps", lambda: any(checkpoints.env_steps))
    # For the process that writes metrics, manifests and the report.
    room = 1_000 + max(path.stat().st_size for path in (run.folder / "metrics").iterdir())
    resource.prlimit(run.popen.pid, resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    assert run.wait(PATIENCE_S) == 1, run.output
    problem = next(line for line in run.output.splitlines() if line.startswith("muxrl: "))
    assert f"cannot write to {run.folder / 'metrics'}" in problem
    assert "File too large; the metrics are whole up to env step " in problem
    assert "the report is not whole" in problem  # its picture is larger than that
    assert "nothing more is written for the tracker 'tensorboard'" in run.output
    assert "Traceback" not in run.output
    assert_readable(run)
    for path in (run.folder / "metrics").iterdir():
        assert path.read_bytes().endswith(b"\n")
    place, manifest, damage = find_checkpoint(RunDirectory.open(run.folder))
    assert (place / "ppo").is_dir()
    assert manifest.env_steps > 0
    at = f"goes on from its checkpoint at {manifest.env_steps:,} env steps"
    assert f"once the cause is mended, 'muxrl launch --resume {run.folder}' {at}" in problem
    assert damage == []
    run.assert_nothing_is_left()


def test_a_run_whose_directory_is_removed_ends_at_once(launch: Callable[..., Run]) -> None:
    run = launch(config() | {"checkpoint": {"at_end": True}})
    run.wait_for_learning()
    run.folder.rename(run.folder.with_name("moved"))
    assert run.wait(PATIENCE_S) == 1, run.output
    problem = next(line for line in run.output.splitlines() if line.startswith("muxrl: "))
    assert f"cannot write to {run.folder / 'metrics'}" in problem
    assert "No such file or directory" in problem
    assert "it has no whole checkpoint, so it cannot be resumed" in problem
    assert "Traceback" not in run.output
    assert not (run.folder / "checkpoints").exists()
    run.assert_nothing_is_left()


FAULTS = [
    ("raise", ["InjectedFault: injected at step 50 of episode 1"]),
    ("exit", ["simulation-0 died"]),
    ("hang", ["has been in one step of its simulation for", "timeouts.step_s"]),
    ("wrong_shape", ["refused t=51", "'agent_0'", "Box(8,) float32", "shape (9,)"]),
    ("nan", ["refused t=51", "'agent_0'", "NaN at index [1]"]),
]


@pytest.mark.parametrize(
    ("fault", "stories"),
    at_night(FAULTS, [FAULTS[0], FAULTS[-1]]),  # by day one that raises: a wrong shape
)
def test_a_faulty_simulation(launch: Callable[..., Run], fault: str, stories: list[str]) -> None:
    run = launch(config(fault) | {"timeouts": {"step_s": 3}})
    assert run.wait(PATIENCE_S + ENDS_S) == 1, run.output
    problem = next(line for line in run.output.splitlines() if line.startswith("muxrl: "))
    for story in ["simulation-0", str(run.folder / "logs" / "simulation-0.log"), *stories]:
        assert story in problem
    if fault in ("raise", "wrong_shape"):
        assert "Traceback" in (run.folder / "logs" / "simulation-0.log").read_text()
    assert_readable(run)
    run.assert_nothing_is_left()


class FaultyInRuns(Faulty):
    """Plays well where a check looks at it."""

    def step(self, actions: dict[str, Any]) -> Any:
        is_run = sys.argv[0].endswith("worker.py")
        return super().step(actions) if is_run else ZeroCost.step(self, actions)


@pytest.mark.night  # by day: a simulation that hangs
def test_a_run_whose_simulation_never_plays_has_failed(launch_alone: Callable[..., Run]) -> None:
    experiment = config("exit", at_step=0, max_restarts=1_000) | {"stop": {"time_s": 8}}
    experiment["simulation"]["env"] = f"{__name__}:{FaultyInRuns.__name__}"
    run = launch_alone(experiment)
    assert run.wait(PATIENCE_S + ENDS_S) == 1, run.output
    problem = next(line for line in run.output.splitlines() if line.startswith("muxrl: "))
    assert "no simulation finished an env step in " in problem
    assert "simulation-0 died" in problem or "none was ready" in problem
    assert_readable(run)


def test_a_learner_that_diverges_ends_the_run_and_names_the_checkpoint(
    launch: Callable[..., Run],
) -> None:
    wild = config() | {"checkpoint": {"interval_env_steps": 1}}
    wild["servers"]["a2c"]["settings"]["lr"] = [[0, 0.0], [600, 0.0], [601, 1e38]]
    run = launch(wild)
    assert run.wait(PATIENCE_S + ENDS_S) == 1, run.output
    problem = next(line for line in run.output.splitlines() if line.startswith("muxrl: "))
    assert "its learner has diverged" in problem
    _, manifest, damage = find_checkpoint(RunDirectory.open(run.folder))
    assert f"goes on from its checkpoint at {manifest.env_steps:,} env steps" in problem
    assert damage == []
    assert_readable(run)


@pytest.mark.night  # by day: test_restarts.py, one that is lost too often
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
