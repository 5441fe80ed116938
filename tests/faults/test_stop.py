"""Runs and sweeps that are ended from another terminal, by `muxrl stop`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.runs import Run, config
from tests.faults.started import PATIENCE_S, ROOT, Started
from tests.faults.test_sweep_faults import num_finished, start, sweep, trials

__all__ = ["start"]
pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


def muxrl(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, and returns it with all its output as stdout."""
    return subprocess.run(
        [sys.executable, "-m", "muxrl", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3 * PATIENCE_S,
        check=False,
    )


def test_a_run_is_stopped_while_its_processes_start(launch_alone: Callable[..., Run]) -> None:
    run = launch_alone(config())
    run.wait_for("a server's log", lambda: (run.folder / "logs" / "ppo.log").exists())
    stopped = muxrl("stop", str(run.folder))
    assert stopped.returncode == 0, stopped.stdout
    assert run.wait() == 130, run.output
    assert json.loads((run.folder / "status.json").read_text())["state"] == "interrupted"
    run.assert_nothing_is_left()


@pytest.mark.ray
@pytest.mark.night  # by day: manage/test_stopping.py
def test_a_sweep_is_stopped_and_keeps_what_it_has(
    start: Callable[..., Started], tmp_path: Path
) -> None:
    folder = tmp_path / "sweep"
    command = start(sweep(seeds=list(range(12))))
    command.wait_for("a trial", lambda: num_finished(folder) >= 1, 5 * PATIENCE_S)
    trial = next(folder / t.run_dir for t in trials(folder) if t.run_dir)
    assert "is a trial of the sweep" in muxrl("stop", str(trial)).stdout
    stopped = muxrl("stop", str(folder))
    assert stopped.returncode == 0, stopped.stdout
    assert command.wait(PATIENCE_S) == 130, command.output
    assert f"go on with: muxrl sweep {folder} --resume" in stopped.stdout
    assert f"{num_finished(folder)} done" in stopped.stdout
    command.assert_nothing_is_left(60.0, but=("ray::DashboardAgent", "ray::RuntimeEnvAgent"))
