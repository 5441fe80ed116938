"""The wall clock of all processes jumps, as when a machine is set right or goes to sleep."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.test_launch_faults import Run, launch_alone
from tests.faults.test_restarts import (
    assert_goes_forward,
    end_well,
    lasting,
    rows,
    wait_for_checkpoint,
    wait_until_it_goes_on,
)

from muxrl.orchestrator.storage.checkpoints import CheckpointFolder

__all__ = ["launch_alone"]

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

DAY_S = 86_400
MISLED = """
import os, time
_time, _file = time.time, os.environ["MISLED_CLOCK"]

def misled():
    with open(_file) as file:
        return _time() + float(file.read() or 0)

time.time = misled
time.time_ns = lambda: int(misled() * 1e9)
"""


@pytest.mark.night  # by day: tests/test_clocks.py
def test_nothing_of_a_run_goes_by_the_wall_clock(
    launch_alone: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, offset = tmp_path / "clock", tmp_path / "offset"
    clock.mkdir()
    (clock / "sitecustomize.py").write_text(MISLED)
    offset.write_text("0")
    monkeypatch.setenv("PYTHONPATH", str(clock))
    monkeypatch.setenv("MISLED_CLOCK", str(offset))
    run = launch_alone(lasting())
    wait_for_checkpoint(run)
    checkpoints = CheckpointFolder(run.folder / "checkpoints")

    for jump_s in (-2 * DAY_S, 30 * DAY_S):
        offset.write_text(str(jump_s))
        before = rows(run, "joint")[-1]["env_steps"]
        run.wait_for("a checkpoint", lambda: checkpoints.env_steps[0] > before)  # noqa: B023
    os.kill(run.pid_of("a2c"), signal.SIGKILL)
    wait_until_it_goes_on(run, "a2c")
    offset.write_text(str(-2 * DAY_S))

    summary = end_well(run)
    assert summary["restarted_at"].keys() == {"a2c"}
    assert_goes_forward(run)
    assert rows(run, "joint")[-1]["time_s"] < 300
    newest = checkpoints.path / "last"
    assert newest.resolve().name == str(checkpoints.env_steps[0])
