"""Whole runs with injected faults: each ends, reports the cause, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import select
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.faults.runs import Run, assert_readable, config, fail, rows
from tests.faults.started import PATIENCE_S
from tests.nights import at_night

from muxrl.experiments.simulations.faulty import Faulty
from muxrl.experiments.simulations.zero_cost import ZeroCost
from muxrl.orchestrator.launch.resuming import find_checkpoint
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.storage.checkpoints import CheckpointFolder

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]


def test_a_checkpoint_that_cannot_be_written_fails_the_run(launch: Callable[..., Run]) -> None:
    run = launch(config() | {"stop": {"env_steps": 2_000}, "checkpoint": {"at_end": True}})
    run.wait_for_learning()
    checkpoints = run.folder / "checkpoints"
    checkpoints.rmdir()
    checkpoints.write_text("no folder")
    assert f"no checkpoint: [Errno 20] Not a directory: '{checkpoints}" in fail(run)


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
    """Reads a terminal's output, so that no process blocks as it writes."""
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
    """A terminal ends as with a lost ssh: all processes get SIGHUP, and nothing can be printed."""
    master, terminal = os.openpty()

    def open_terminal() -> None:
        # `nohup` makes its children ignore SIGHUP; the run must not.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    run = launch_alone(
        config() | {"checkpoint": {"at_end": True}},
        "--address=",  # the live table
        **dict.fromkeys(("stdin", "stdout", "stderr"), terminal),
        preexec_fn=open_terminal,
    )
    os.close(terminal)
    with _read(master):
        run.wait_for_learning()
    os.close(master)  # the system sends SIGHUP to all processes of the terminal
    assert run.wait() == 130  # no output can be read; see status.json
    assert_readable(run)
    for name in ("ppo", "a2c"):
        assert (run.folder / "checkpoints" / "last" / name).is_dir()
    run.assert_nothing_is_left()


@pytest.mark.night  # by day: a directory that is removed, and trackers
def test_a_full_disk_ends_a_run_by_name(launch_alone: Callable[..., Run]) -> None:
    run = launch_alone(config() | {"trackers": ["tensorboard"], "checkpoint": {"interval_s": 1}})
    run.wait_for_learning()
    checkpoints = CheckpointFolder(run.folder / "checkpoints")
    run.wait_for("a checkpoint with steps", lambda: any(checkpoints.env_steps))
    # Limits the files of the process that writes metrics, manifests and the report.
    room = 6_000 + max(path.stat().st_size for path in (run.folder / "metrics").iterdir())
    resource.prlimit(run.popen.pid, resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    problem = fail(run)
    assert f"cannot write to {run.folder / 'metrics'}" in problem
    assert "File too large; the metrics are complete up to env step " in problem
    assert "the report is incomplete" in problem  # its picture is larger than the limit
    assert "the tracker 'tensorboard' of " in run.output
    assert "Traceback" not in run.output
    for path in (run.folder / "metrics").iterdir():
        assert path.read_bytes().endswith(b"\n")
    place, manifest, damage = find_checkpoint(RunDirectory.open(run.folder))
    assert (place / "ppo").is_dir()
    assert manifest.env_steps > 0
    at = f"continues from its checkpoint at {manifest.env_steps:,} env steps"
    assert f"once the cause is fixed, 'muxrl launch --resume {run.folder}' {at}" in problem
    assert damage == []


def test_a_run_whose_directory_is_removed_fails_at_once(launch: Callable[..., Run]) -> None:
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
    ("nan", ["refused t=51", "'agent_0'", "NaN at index [1]", "play that episode again: seed "]),
]


@pytest.mark.parametrize(
    ("fault", "stories"),
    at_night(FAULTS, [FAULTS[0], FAULTS[-1]]),  # by day: a wrong shape, as a fault that raises
)
def test_a_faulty_simulation(launch: Callable[..., Run], fault: str, stories: list[str]) -> None:
    run = launch(config(fault) | {"timeouts": {"step_s": 3}})
    problem = fail(run)
    for story in ["simulation-0", str(run.folder / "logs" / "simulation-0.log"), *stories]:
        assert story in problem
    if fault in ("raise", "wrong_shape"):
        assert "Traceback" in (run.folder / "logs" / "simulation-0.log").read_text()


class FaultyInRuns(Faulty):
    """A simulation that is faulty in runs, but not when a launch or check tries it first."""

    def step(self, actions: dict[str, Any]) -> Any:
        is_run = sys.argv[0].endswith("working.py")
        return super().step(actions) if is_run else ZeroCost.step(self, actions)


@pytest.mark.night  # by day: a simulation that hangs
def test_a_run_whose_simulation_never_plays_has_failed(launch_alone: Callable[..., Run]) -> None:
    experiment = config("exit", at_step=0, max_restarts=1_000) | {"stop": {"time_s": 8}}
    experiment["simulation"]["env"] = f"{__name__}:{FaultyInRuns.__name__}"
    run = launch_alone(experiment)
    problem = fail(run)
    assert "no simulation finished an env step in " in problem
    assert "simulation-0 died" in problem or "none was ready" in problem


class SlowlyMade(ZeroCost):
    """A simulation that takes longer to be made than its run may play."""

    def __init__(self, **kwargs: Any) -> None:
        time.sleep(3.0)
        super().__init__(**kwargs)


def test_a_run_s_time_begins_with_its_first_env_step(launch: Callable[..., Run]) -> None:
    experiment = config() | {"stop": {"time_s": 2}}
    experiment["simulation"]["env"] = f"{__name__}:{SlowlyMade.__name__}"
    run = launch(experiment)
    assert run.wait() == 0, run.output
    joint = rows(run, "joint")
    assert all(row["env_steps"] > 0 for row in joint if row["time_s"] > 0.5)
    assert sum(row["env_steps"] == 0 for row in joint) <= 1
    assert_readable(run)


def test_a_long_evaluation_costs_no_training_episode(
    launch: Callable[..., Run],
) -> None:
    evaluation = {"interval_env_steps": 150, "num_episodes": 4, "final_num_episodes": 0}
    experiment = config() | {"stop": {"env_steps": 200}, "evaluation": evaluation}
    experiment["simulation"]["kwargs"]["pause_s"] = 2e-3
    for server in experiment["servers"].values():
        server["limits"] = {"episode_timeout_s": 1}
    run = launch(experiment)
    assert run.wait() == 0, run.output
    status = json.loads((run.folder / "status.json").read_text())
    assert status["stopped_by"] == "200 env steps"
    assert "env steps, by stop: 200 env steps\n" in run.output
    warnings = status["warnings"]
    assert "idle episodes closed" not in {w["what"] for of in warnings.values() for w in of}


def test_a_learner_that_diverges_ends_the_run_and_names_the_checkpoint(
    launch: Callable[..., Run],
) -> None:
    wild = config() | {"checkpoint": {"interval_env_steps": 1}}
    wild["servers"]["a2c"]["settings"]["lr"] = [[0, 0.0], [600, 0.0], [601, 1e38]]
    run = launch(wild)
    problem = fail(run)
    assert "its learner has diverged" in problem
    _, manifest, damage = find_checkpoint(RunDirectory.open(run.folder))
    assert f"continues from its checkpoint at {manifest.env_steps:,} env steps" in problem
    assert damage == []
