"""Small runs for tests that inject faults, and checks of what such runs leave."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import yaml
from tests.faults.hosted import Host
from tests.faults.started import ENDS_S, PATIENCE_S, PAUSE_S, Started

from muxrl.orchestrator.launch.resuming import find_checkpoint
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.storage.checkpoints import CheckpointFolder

REPORT_S = 10
"""A process that does not answer for so long counts as silent.

It is long enough for a process that is only slow to start on a busy machine.
"""


def small_server(algorithm: str, agent: str) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "train_batch_size_per_learner": 50,
        "min_sample_timesteps_per_iteration": 1,  # a record after each batch
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
    """Returns an experiment of two servers and one simulation, which may have a fault.

    Args:
        fault: of the simulation, see `Faulty`; None: it has none.
        at_step: after how many env steps the fault occurs; episodes have 100.
        max_restarts: of each process.
    """
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
    """A ``muxrl launch`` in a process of its own."""

    folder: Path = Path()

    def wait_for_learning(self) -> None:
        """Waits until the simulations play and both servers have learned."""
        files = [self.folder / "metrics" / f"{name}.jsonl" for name in ("ppo", "a2c", "joint")]
        self.wait_for("metrics", lambda: all(f.exists() and f.stat().st_size for f in files))

    def pid_of(self, server_id: str) -> int:
        """Returns the pid of the process whose stdout is the server's log."""
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


def arguments(
    config: dict[str, Any], folder: Path, *options: str, command: str = "launch"
) -> list[str]:
    """Writes a config; returns the arguments of the command that starts it.

    The run's directory is `folder` / "run"; that of a sweep or league is named after the command.
    """
    path, what = folder / "hurt.yaml", "run" if command == "launch" else command
    path.write_text(yaml.safe_dump(config))
    return [command, str(path), f"--{what}-dir", str(folder / what), *options]


def assert_readable(run: Run) -> None:
    """Asserts that the run's directory can be read back and has a report, and how the run ended."""
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


def slow_to_save(experiment: dict[str, Any]) -> dict[str, Any]:
    """Makes each server take long to save, so that a checkpoint is unfinished for a while."""
    for server in experiment["servers"].values():
        server["algorithm"] = f"tests.faults.slow_saves:{server['algorithm']}"
    return experiment


def lasting(fault: str | None = None, at_step: int = 150, **changes: Any) -> dict[str, Any]:
    """Returns an experiment with restarts, and with a checkpoint every second."""
    return config(fault, at_step, max_restarts=3) | {"checkpoint": {"interval_s": 1}} | changes


def rows(run: Run | Path, name: str) -> list[dict[str, Any]]:
    folder = run if isinstance(run, Path) else run.folder
    path = folder / "metrics" / f"{name}.jsonl"
    return [json.loads(row) for row in path.read_text().splitlines()]


def num_restarts(address: str) -> float | None:
    """Returns the number of restarts in a server's or gateway's metrics; None: nothing listens."""
    try:
        text = requests.get(f"http://{address}/metrics", timeout=PATIENCE_S).text
    except requests.ConnectionError:
        return None
    (line,) = (one for one in text.splitlines() if one.startswith("muxrl_restarts_total{"))
    return float(line.split()[-1])


def wait_for_checkpoint(run: Run) -> Run:
    run.wait_for_learning()
    checkpoints = CheckpointFolder(run.folder / "checkpoints")
    run.wait_for("a checkpoint", lambda: bool(checkpoints.env_steps and checkpoints.env_steps[0]))
    return run


def wait_until_it_goes_on(run: Run, name: str) -> None:
    """Waits until a process has been started again and the env steps grow again."""

    def goes_on() -> bool:
        joint = rows(run, "joint")
        marks = [i for i, row in enumerate(joint) if name in row.get("restarted", ())]
        return bool(marks) and joint[-1]["env_steps"] > joint[marks[-1]]["env_steps"] + 500

    run.wait_for(f"steps after {name} was started again", goes_on)


def fail(run: Run) -> str:
    """Waits for the end of a run that fails and checks what it leaves; returns its message."""
    assert run.wait(PATIENCE_S + ENDS_S) == 1, run.output
    assert_readable(run)
    run.assert_nothing_is_left()
    return next(line for line in run.output.splitlines() if line.startswith("muxrl: "))


def end_well(run: Run) -> dict[str, Any]:
    """Interrupts a run as its user may, checks what it leaves, and returns its summary."""
    run.interrupt()
    assert run.wait(PATIENCE_S) == 130, run.output
    assert "Traceback" not in run.output
    assert_readable(run)
    run.assert_nothing_is_left()
    resume = f"'muxrl launch --resume {run.folder}' continues from its checkpoint at "
    assert run.output.count("--resume") == run.output.count(resume) == 1, run.output
    place, _, damage = find_checkpoint(RunDirectory.open(run.folder))
    assert (damage, {p.name for p in place.iterdir()}) == ([], {"ppo", "a2c", "manifest.json"})
    summary: dict[str, Any] = json.loads((run.folder / "summary.json").read_text())
    return summary


def assert_goes_forward(run: Run | Path, *servers: str) -> None:
    """Asserts that no file has two rows for the same step, and that no iteration is missing."""
    joint = rows(run, "joint")
    assert [row["env_steps"] for row in joint] == sorted(row["env_steps"] for row in joint)
    assert [row["time_s"] for row in joint] == sorted({row["time_s"] for row in joint})
    for server_id in servers or ("ppo", "a2c"):
        records = rows(run, server_id)
        assert [r["iteration"] for r in records] == list(range(1, len(records) + 1))
        assert [r["env_steps"] for r in records] == sorted({r["env_steps"] for r in records})
