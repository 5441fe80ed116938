"""Any process of a run is killed at any moment of it: the run says so, goes on, and ends as ever.

The moments are read from the run's directory, as anybody may see them.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from tests.faults.runs import Run, assert_goes_forward, assert_readable, config, rows
from tests.faults.started import PATIENCE_S
from tests.nights import at_night

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

ENV_STEPS = 1_500
PROCESSES = ("ppo", "a2c", "simulation-0", "evaluation")


def is_evaluating(run: Run, *, is_first: bool) -> bool:
    status = json.loads((run.folder / "status.json").read_text())
    return bool(status["state"] == "evaluating" and (status["env_steps"] == 0) is is_first)


def played(run: Run, env_steps: int) -> bool:
    path = run.folder / "metrics" / "joint.jsonl"
    return (
        path.exists() and bool(joint := rows(run, "joint")) and joint[-1]["env_steps"] > env_steps
    )


MOMENTS: dict[str, Callable[[Run], bool]] = {
    "first evaluation": lambda run: is_evaluating(run, is_first=True),
    "first steps": lambda run: played(run, 0),
    "mid-training": lambda run: played(run, ENV_STEPS // 2),
    "checkpoint": lambda run: any((run.folder / "checkpoints").glob(".[0-9]*")),
    "last evaluation": lambda run: is_evaluating(run, is_first=False),
}
BY_DAY = [
    ("ppo", "first evaluation"), ("evaluation", "first evaluation"), ("simulation-0", "checkpoint")
]  # fmt: skip
"""Beside what `test_restarts` kills: servers in a save and in the last evaluation, and that."""
CASES = [(name, moment) for name in PROCESSES for moment in MOMENTS]


def experiment() -> dict[str, Any]:
    return config(None, 0, max_restarts=3) | {
        "stop": {"env_steps": ENV_STEPS},
        "evaluation": {"interval_env_steps": 700, "num_episodes": 4, "final_num_episodes": 4},
        "checkpoint": {"interval_env_steps": 400, "interval_s": None},
    }


@pytest.mark.parametrize(
    ("name", "moment"),
    at_night(CASES, [case for case in CASES if case not in BY_DAY]),
)
def test_a_run_goes_on(launch: Callable[..., Run], name: str, moment: str) -> None:
    run = launch(experiment())
    run.wait_for(moment, lambda: (run.folder / "status.json").exists() and MOMENTS[moment](run))
    os.kill(run.pid_of(name), signal.SIGKILL)
    assert run.wait(PATIENCE_S) == 0, run.output
    assert "Traceback" not in run.output
    assert "died (SIGKILL" in run.output
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["restarted_at"].keys() == {name}
    assert rows(run, "joint")[-1]["env_steps"] >= ENV_STEPS
    assert_readable(run)
    assert_goes_forward(run)
    final = [row for row in rows(run, "evaluation") if row["is_final"]]
    assert {row["replaced"] for row in final} >= {None, "ppo", "a2c"}
    run.assert_nothing_is_left()
