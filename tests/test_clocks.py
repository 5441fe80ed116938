"""Waiting is timed by a monotonic clock: a jump of the wall clock ends no run and no episode."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
WRITTEN_DOWN = {
    "servers/checkpoints/checkpoint.py",
    "orchestrator/trackers/mlflow.py",
    "orchestrator/trackers/tensorboard.py",
}
"""Files in which the time of day is recorded for users, but nothing waits for it."""


def test_nothing_waits_by_the_time_of_day() -> None:
    found = {
        str(path.relative_to(ROOT))
        for room in ("protocol", "client", "servers", "orchestrator")
        for path in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.time", "time.time_ns")
    }
    assert found == WRITTEN_DOWN
