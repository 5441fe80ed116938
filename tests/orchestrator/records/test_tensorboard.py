"""TensorBoard's file on a full disk; what it holds is tested with the metrics."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from tests.orchestrator.records.full_disk import with_little_room

from muxrl.orchestrator.records.metrics import read_metrics
from muxrl.orchestrator.records.run_directory import RunDirectory


@pytest.mark.parametrize("room", [0, 10_000])
def test_a_full_disk_ends_tensorboard_and_not_the_run(tmp_path: Path, room: int) -> None:
    run = RunDirectory.create(tmp_path, "tag", datetime(2026, 11, 21))
    program = f"""
give_room({room})
with MetricsWriter(run, tensorboard=True) as metrics:
    for n in range(400):
        give_room({room})
        metrics._add_scalars("joint", {{"a": 0.5, "b": 1.5}}, {{"env_steps": n}})
        give_room(-1)
        metrics.joint({{"time_s": 1.0}} | {{"env_steps": n}})
        give_room({room})
"""
    done = with_little_room(run.path, program)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("nothing more is written for TensorBoard") == 1
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(read_metrics(run.metrics / "joint.jsonl")) == 400
    (events,) = run.tensorboard.iterdir()
    assert events.stat().st_size == room
