"""Makes up a folder of runs and sweeps."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.orchestrator.records.recorded import new_run, write_whole_run

from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import StatusFile, read_status
from muxrl.orchestrator.storage.json_files import write_json
from muxrl.orchestrator.sweeps.directory import SweepDirectory, TrialRecord


def fill(root: Path) -> None:
    """Writes a finished run, one whose process was killed, a sweep, and folders of neither."""
    done = new_run(root / "runs")
    write_whole_run(done)
    StatusFile(done).enter("done", 1_234)
    says(done, started_at="2026-11-21T10:00:00+00:00")
    killed = RunDirectory.create(root, "killed", datetime(2026, 11, 22))
    servers = {"fox": {"algorithm": "A2C", "agents": ["fox_0", "fox_1"]}}
    killed.write_plan({"servers": servers, "assignment": "fox:fox_0,fox_1", "seed": 0})
    StatusFile(killed).enter("running", 10)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    says(killed, started_at="2026-11-22T10:00:00+00:00", pid=gone.pid)
    sweep = SweepDirectory.create(root, "tuned", datetime(2026, 11, 20))
    sweep.config_file.write_text("name: tuned\n")
    os.utime(sweep.config_file, (1_763_000_000, 1_763_000_000))
    trial = TrialRecord("0-a", "a", {"all": "dqn"}, {}, 0, status="done", env_steps=77)
    sweep.write_trials([trial, TrialRecord("1-a", "a", {"all": "sac"}, {}, 1)])
    (sweep.runs / "0-a" / "metrics").mkdir(parents=True)
    (root / "foreign" / "metrics").mkdir(parents=True)
    (root / "notes").mkdir()
    (root / "notes.txt").write_text("neither")


def says(run: RunDirectory, **changed: Any) -> None:
    status = read_status(run)
    assert status is not None
    write_json(run.path / "status.json", asdict(status) | changed)
