"""TensorBoard's file after a resume and on a full disk; `test_offline_files` reads one."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from tests.orchestrator.records.full_disk import with_little_room
from tests.orchestrator.trackers.tracked_runs import tensorboard_events, tracked_run

from muxrl.orchestrator.records.metrics import read_metrics
from muxrl.orchestrator.trackers.tracking import Tracking


@pytest.mark.parametrize(("resumed_at", "forgets"), [(None, 0), (15, 16)])
def test_a_resumed_run_s_file_drops_the_steps_after_the_checkpoint(
    tmp_path: Path, resumed_at: int | None, forgets: int
) -> None:
    run = tracked_run(tmp_path)
    with closing(Tracking(run, ["tensorboard"], resumed_at)) as trackers:
        trackers.receive("joint", {"env_steps": 30, "loss": 1.0})
    (path,) = (run.path / "tensorboard").iterdir()
    version, start, row = tensorboard_events(path)
    assert version.file_version == "brain.Event:2"
    assert (start.step, start.session_log.status) == (forgets, start.session_log.START)
    assert row.step == 30


@pytest.mark.parametrize("room", [0, 10_000])
def test_a_full_disk_ends_tensorboard_and_not_the_run(tmp_path: Path, room: int) -> None:
    run = tracked_run(tmp_path)
    program = f"""
from contextlib import closing
from muxrl.orchestrator.trackers.tracking import Tracking
give_room({room})
with closing(Tracking(run, ["tensorboard"])) as trackers:
    give_room(-1)
    with MetricsWriter(run) as metrics:
        for n in range(400):
            metrics.joint({{"time_s": 1.0, "env_steps": n}})
            give_room({room})
            trackers.receive("joint", {{"a": 0.5, "b": 1.5, "env_steps": n}})
            give_room(-1)
    give_room({room})
"""
    done = with_little_room(run.path, program)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the tracker 'tensorboard' of ") == 1
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(read_metrics(run.metrics / "joint.jsonl")) == 400
    (events,) = (run.path / "tensorboard").iterdir()
    assert events.stat().st_size == room
