"""`muxrl track` sends a finished run to trackers, from its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.orchestrator.commanded import Muxrl
from tests.orchestrator.records.recorded import ASSIGNMENT, evaluation
from tests.orchestrator.trackers.tracked_runs import end, tensorboard_scalars, tracked_run

from muxrl.orchestrator.launch.resuming import locked
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.run_directory import TRIALS_FILE, RunDirectory
from muxrl.orchestrator.sweeps.directory import TrialRecord

HERE = "tests.orchestrator.trackers.faulty"


def finished_run(root: Path) -> RunDirectory:
    run = tracked_run(root)
    with MetricsWriter(run) as metrics:
        for env_steps in (100, 300):
            metrics.server("sheep", {"env_steps": env_steps, "loss": 0.5})
        metrics.joint({"env_steps": 200, "time_s": 2.0})
        metrics.evaluation(evaluation(300, None, [1.0], [2.0], [3.0]))
    end(run)
    return run


def notes(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "notes.jsonl").read_text().splitlines()]


def test_a_tracker_gets_all_rows_in_order_and_the_report(tmp_path: Path, muxrl: Muxrl) -> None:
    run = finished_run(tmp_path)
    told = muxrl("track", run.path, f"{HERE}:Notes", "tensorboard")
    (_, about), *rest = notes(tmp_path)
    assert (about["assignment"], about["resumed_at"], about["known_as"]) == (ASSIGNMENT, None, "")
    assert [(call, *what[1:]) for call, what in rest if call == "log"] == [
        ("log", 100), ("log", 200), ("log", 300), ("log", 300),
    ]  # fmt: skip
    assert rest[-2:] == [["artifacts", ["summary.md", "learning.png"]], ["end", "done"]]
    (events,) = (run.path / "tensorboard").iterdir()
    assert tensorboard_scalars(events)["evaluation/all_learned/sheep", 300] == 3.0
    assert told.out.splitlines() == [
        f"{HERE}:Notes: sent 4 rows of {run.path} as first",
        f"tensorboard: sent 4 rows of {run.path}",
    ]


def test_a_sweep_is_a_group_of_runs(tmp_path: Path, muxrl: Muxrl) -> None:
    run = finished_run(tmp_path / "sweep" / "runs")
    (tmp_path / "sweep" / "sweep.yaml").write_text("name: table\n")
    records = [
        TrialRecord("0-begun", ASSIGNMENT, {}, {}, 1, run_dir=f"runs/{run.name}"),
        TrialRecord("1-waiting", ASSIGNMENT, {}, {}, 2),
    ]
    lines = "".join(f"{record.to_json()}\n" for record in records)
    (tmp_path / "sweep" / TRIALS_FILE).write_text(lines)
    muxrl("track", tmp_path / "sweep", f"{HERE}:Notes")
    ((_, about),) = (note for note in notes(run.path.parent) if note[0] == "start")
    assert (about["project"], about["group"]) == ("table", "sweep")
    assert about["config"]["name"] == "tag"


def test_a_tracker_that_fails_is_reported(tmp_path: Path, muxrl: Muxrl) -> None:
    run = finished_run(tmp_path)
    assert muxrl("track", run.path, f"{HERE}:Raising", code=1).err == (
        f"muxrl: the tracker '{HERE}:Raising' has failed after 0 rows of {run.path}: "
        "RuntimeError: the quota\n"
    )


def test_wrong_arguments_of_track_are_refused(tmp_path: Path, muxrl: Muxrl) -> None:
    run = finished_run(tmp_path)
    assert "no such folder" in muxrl("track", tmp_path / "absent", "tensorboard", code=2).err
    assert "did you mean 'tensorboard'?" in muxrl("track", run.path, "tensorbord", code=2).err
    with locked(run):
        told = muxrl("track", run.path, "tensorboard", code=1).err
    assert "belongs to a run that is going on" in told
