"""Any process of a run is killed at any moment: the run reports it, goes on, and ends as usual.

The moments are read from the run's directory, where users can see them, too.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.faults.runs import Run, assert_goes_forward, assert_readable, config, rows, slow_to_save
from tests.faults.started import PATIENCE_S
from tests.faults.test_gateway import LOOP, external
from tests.nights import at_night

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

ENV_STEPS = 1_500
SERVERS, PLAYERS, TRACKER = ("ppo", "a2c"), ("simulation-0", "evaluation"), "tracker"
THROUGH_GATEWAY = ("gateway", "simulation-0", "ppo")


class Listening:
    """A tracker in a process of its own, which stores nothing."""

    def start(self, run: Any) -> str:
        return ""

    def log(self, numbers: Any, env_steps: int) -> None: ...

    def artifacts(self, files: Any) -> None: ...

    def end(self, outcome: str) -> None: ...


def state(run: Run) -> tuple[str, int]:
    path = run.folder / "status.json"
    status = json.loads(path.read_text()) if path.exists() else {"state": "", "env_steps": 0}
    return status["state"], status["env_steps"]


def played(run: Run, env_steps: int) -> bool:
    path = run.folder / "metrics" / "joint.jsonl"
    return (
        path.exists() and bool(joint := rows(run, "joint")) and joint[-1]["env_steps"] > env_steps
    )


MOMENTS: dict[str, Callable[[Run], bool]] = {
    "first evaluation": lambda run: state(run) == ("evaluating", 0),
    "first steps": lambda run: played(run, 0),
    "mid-training": lambda run: played(run, ENV_STEPS // 2),
    "checkpoint": lambda run: any((run.folder / "checkpoints").glob(".[0-9]*")),
    "last evaluation": lambda run: state(run)[0] == "evaluating" and state(run)[1] > 0,
}
LATER = [moment for moment in MOMENTS if moment != "first evaluation"]  # nobody plays before it
BY_DAY = [
    [("simulation-0", "start"), ("ppo", "first evaluation"), (TRACKER, "mid-training")],
    [("evaluation", "first evaluation"), ("simulation-0", "mid-training")],
]
"""Processes to kill one after another in the same run.

`test_restarts` kills others: servers during a save and during the last evaluation, and the
evaluation process. At night each process is killed in a run of its own.
"""
CASES = [
    (name, moment)
    for name in (*SERVERS, *PLAYERS, TRACKER)
    for moment in MOMENTS
    # Training has ended by the last evaluation; the tracker starts with the first row.
    if (name, moment) not in {("simulation-0", "last evaluation"), (TRACKER, "first evaluation")}
]
EXTERNAL = [(name, moment) for name in THROUGH_GATEWAY for moment in LATER]
RUN = {
    "stop": {"env_steps": ENV_STEPS},
    "evaluation": {"interval_env_steps": 700, "num_episodes": 2, "final_num_episodes": 2},
    "checkpoint": {"interval_env_steps": 400, "interval_s": None},
    "metrics_interval_s": 0.2,
}


def pid_of(run: Run, name: str) -> int:
    if name != TRACKER:
        return run.pid_of(name)
    (pid,) = (p.pid for p in run.started() if f'"{__name__}:Listening"' in p.command)
    return pid


def kill(run: Run, name: str, moment: str) -> None:
    """Kills a process during this moment of the run."""
    log = run.folder / "logs" / f"{name}.log"

    def lasts() -> bool:
        return run.writer_of(log) is not None if moment == "start" else MOMENTS[moment](run)

    run.wait_for(moment, lasts)
    pid = pid_of(run, name)
    assert lasts(), f"the {moment} was over before {name} could be killed"
    os.kill(pid, signal.SIGKILL)


def launch_and_kill(
    launch: Callable[..., Run], experiment: dict[str, Any], name: str, moment: str
) -> Run:
    run = launch(slow_to_save(experiment) if moment == "checkpoint" else experiment)
    kill(run, name, moment)
    return run


def assert_it_went_on(run: Run, *names: str) -> None:
    assert run.wait(PATIENCE_S) == 0, run.output
    assert "Traceback" not in run.output
    assert ("goes on without its tracker" in run.output) == (TRACKER in names)
    if restarted := {*names} - {TRACKER}:
        assert "died (SIGKILL" in run.output
        summary = json.loads((run.folder / "summary.json").read_text())
        assert summary["restarted_at"].keys() == restarted
    assert rows(run, "joint")[-1]["env_steps"] >= ENV_STEPS
    assert_readable(run)
    assert_goes_forward(run)
    final = [row for row in rows(run, "evaluation") if row["is_final"]]
    assert {row["replaced"] for row in final} >= {None, "ppo", "a2c"}
    run.assert_nothing_is_left()


@pytest.mark.parametrize("kills", BY_DAY)
def test_a_run_goes_on_whatever_is_killed(
    launch: Callable[..., Run], kills: list[tuple[str, str]]
) -> None:
    run = launch(config(None, 0, max_restarts=3) | RUN | {"trackers": [f"{__name__}:Listening"]})
    for name, moment in kills:
        kill(run, name, moment)
    assert_it_went_on(run, *(name for name, _ in kills))


@pytest.mark.night
@pytest.mark.parametrize(("name", "moment"), CASES)
def test_a_run_goes_on(launch: Callable[..., Run], name: str, moment: str) -> None:
    trackers = [f"{__name__}:Listening"] if name == TRACKER else []
    experiment = config(None, 0, max_restarts=3) | RUN | {"trackers": trackers}
    assert_it_went_on(launch_and_kill(launch, experiment, name, moment), name)


@pytest.mark.parametrize(
    "moment", at_night(LATER, [moment for moment in LATER if moment != "mid-training"])
)
def test_a_run_whose_shadow_is_lost_goes_on(launch: Callable[..., Run], moment: str) -> None:
    experiment = config(None, 0, max_restarts=3) | RUN
    few = {"num_steps_sampled_before_learning_starts": 100}
    experiment["servers"]["dqn"] = {"algorithm": "DQN", "shadow": "ppo", "settings": few}
    run = launch_and_kill(launch, experiment, "dqn", moment)
    assert_it_went_on(run, "dqn")
    last = rows(run, "joint")[-1]["servers"]
    assert last["dqn"]["weights_seq_no"] > 0
    # A shadow loses what it received after its checkpoint, as any server does.
    assert last["ppo"]["num_env_steps"] - 600 <= last["dqn"]["num_env_steps"] <= ENV_STEPS


@pytest.mark.parametrize(
    ("name", "moment"),
    at_night(EXTERNAL, [case for case in EXTERNAL if case != ("gateway", "last evaluation")]),
)
def test_a_run_whose_simulation_is_a_program_goes_on(
    launch: Callable[..., Run], tmp_path: Path, name: str, moment: str
) -> None:
    program = tmp_path / "loop.py"
    program.write_text(LOOP)
    experiment = external(**RUN)
    experiment["simulation"]["command"] = [sys.executable, str(program), "{gateway}"]
    experiment["servers"]["ppo"]["restarts"] = {"max": 3}
    assert_it_went_on(launch_and_kill(launch, experiment, name, moment), name)


STARTS = [*SERVERS, *PLAYERS, "gateway"]


@pytest.mark.night
@pytest.mark.parametrize("name", STARTS)
def test_a_process_that_is_killed_while_it_starts(launch: Callable[..., Run], name: str) -> None:
    """A server or gateway that never was ready ends the run; a player is started again."""
    experiment = external(**RUN) if name == "gateway" else config(None, 0, max_restarts=3) | RUN
    run = launch_and_kill(launch, experiment, name, "start")
    if name in PLAYERS:
        assert_it_went_on(run, name)
        return
    assert run.wait(PATIENCE_S) == 1, run.output
    who = "the gateway" if name == "gateway" else f"server '{name}'"
    assert f"{who} died (SIGKILL" in run.output
    assert "Traceback" not in run.output
    run.assert_nothing_is_left()
