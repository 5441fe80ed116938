"""What a run itself stands on dies: Ray's GCS, its raylet, or the orchestrator."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.started import PATIENCE_S
from tests.faults.test_launch_faults import Run, assert_readable, launch_alone
from tests.faults.test_restarts import lasting, wait_for_checkpoint

from muxrl.orchestrator.launch.resuming import find_checkpoint
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.supervise.ray_session import PREFIX, remove_abandoned

__all__ = ["launch_alone"]

pytestmark = [pytest.mark.faults, pytest.mark.ray, pytest.mark.timeout(600)]


def test_a_run_whose_gcs_is_killed_saves_itself_and_ends_by_name(
    launch_alone: Callable[..., Run],
) -> None:
    run = launch_alone(lasting(checkpoint={"interval_s": None}))
    run.wait_for_learning()
    (gcs,) = (process for process in run.started() if "gcs_server" in process.command.split()[0])
    os.kill(gcs.pid, signal.SIGKILL)
    assert run.wait(PATIENCE_S) == 1, run.output
    assert "Ray's GCS at " in run.output
    assert "muxrl launch --resume goes on with the run" in run.output
    assert "Traceback" not in run.output
    assert_readable(run)
    place, manifest, damage = find_checkpoint(RunDirectory.open(run.folder))
    assert (damage, {p.name for p in place.iterdir()}) == ([], {"ppo", "a2c", "manifest.json"})
    assert manifest.env_steps > 0
    run.assert_nothing_is_left()


@pytest.mark.night  # by day: the GCS
def test_a_run_whose_raylet_is_killed_ends_by_its_name(launch_alone: Callable[..., Run]) -> None:
    run = launch_alone(lasting())
    wait_for_checkpoint(run)
    (raylet,) = (p for p in run.started() if p.command.split()[0].endswith("/raylet"))
    os.kill(raylet.pid, signal.SIGKILL)
    assert run.wait(PATIENCE_S) == 1, run.output
    assert "muxrl: Ray's raylet on this machine is lost" in run.output, run.output
    assert "Traceback" not in run.output
    assert_readable(run)
    _, manifest, damage = find_checkpoint(RunDirectory.open(run.folder))
    assert (damage, manifest.env_steps > 0) == ([], True)
    run.assert_nothing_is_left()


@pytest.mark.night  # by day: test_resume_faults.py
def test_processes_of_an_orchestrator_that_is_killed_end_by_themselves(
    launch_alone: Callable[..., Run], temporary: Path
) -> None:
    run = launch_alone(lasting())
    wait_for_checkpoint(run)
    run.popen.kill()
    assert run.wait(PATIENCE_S) == -signal.SIGKILL
    # Ray's two agents seek the GCS for a minute before they end.
    run.assert_nothing_is_left(30.0, but=("ray::DashboardAgent", "ray::RuntimeEnvAgent"))
    run.kill()
    (left,) = temporary.glob(f"{PREFIX}*")
    remove_abandoned(temporary)
    assert not left.exists()
    _, manifest, damage = find_checkpoint(RunDirectory.open(run.folder))
    assert (damage, manifest.env_steps > 0) == ([], True)
