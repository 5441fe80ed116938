"""The status that a run keeps on disk, and the notes that its report makes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import pytest
from tests.orchestrator.commanded import Muxrl
from tests.orchestrator.records.full_disk import with_little_room

from muxrl.orchestrator.errors import NotARunDirectory
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import StatusFile, read_status
from muxrl.orchestrator.reports.report import write_report
from muxrl.orchestrator.storage.json_files import write_json
from muxrl.protocol.messages import ServerWarning


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.create(tmp_path, "tag", datetime(2026, 11, 21))
    made.write_plan({"servers": {"ppo": {"algorithm": "PPO", "agents": ["a"]}}, "seed": 1})
    return made


def test_each_state_is_written_whole(run: RunDirectory) -> None:
    assert read_status(run) is None
    file = StatusFile(run)
    begun = read_status(run)
    assert (begun.state, begun.cause, begun.ended_at, begun.env_steps) == ("starting", "", None, 0)
    assert begun.pid == os.getpid()
    assert begun.host
    file.enter("running", 0)
    file.enter("evaluating", 2_000)
    file.enter("failed", 2_500, "server 'ppo' died")
    ended = read_status(run)
    assert (ended.state, ended.cause) == ("failed", "server 'ppo' died")
    assert ended.env_steps == 2_500
    assert ended.started_at == begun.started_at
    assert datetime.fromisoformat(ended.ended_at).tzinfo is not None
    assert not list(run.path.glob(".*"))


def test_a_run_that_is_resumed_keeps_its_beginning(run: RunDirectory) -> None:
    StatusFile(run).enter("interrupted", 2_500, "Ctrl-C")
    path = run.path / "status.json"
    status = json.loads(path.read_text())
    del status["num_resumed"]  # a status of an earlier version
    path.write_text(json.dumps(status | {"started_at": "2026-11-21T00:00:00+00:00"}))
    for num in (1, 2):
        StatusFile(run, read_status(run))
        again = read_status(run)
        assert (again.state, again.num_resumed, again.env_steps) == ("starting", num, 2_500)
        assert again.started_at == "2026-11-21T00:00:00+00:00"


def test_restarts_are_counted_by_process_and_kept_by_a_run_that_is_resumed(
    run: RunDirectory,
) -> None:
    file = StatusFile(run)
    for name in ("ppo", "simulation-0", "ppo"):
        file.note_restart(name)
    file.enter("interrupted", 10, "Ctrl-C")
    StatusFile(run, read_status(run)).note_restart("ppo")
    assert read_status(run).num_restarts == {"ppo": 3, "simulation-0": 1}


def test_warnings_are_written_when_there_are_new_ones_and_in_the_end(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    file = StatusFile(run)

    def warned(num: int, problem: str = "") -> tuple[int, str]:
        text = "policy 'default': an update is skipped"
        file.warn({"ppo": [ServerWarning("updates skipped", num, 40, text)]}, problem)
        return read()

    def read() -> tuple[int, str]:
        status = read_status(run)
        ((warning,),) = status.warnings.values()
        assert warning.env_steps == 40
        return warning.num, status.checkpoint_problem

    assert warned(1) == (1, "")
    assert warned(2) == (1, "")
    assert warned(3, "no checkpoint") == (3, "no checkpoint")
    assert warned(4, "no checkpoint") == (3, "no checkpoint")
    now[0] += 11.0
    assert warned(4, "no checkpoint") == (4, "no checkpoint")
    assert warned(5, "") == (5, "")
    warned(6, "")
    file.enter("failed", 100, "it ended")
    assert read() == (6, "")
    StatusFile(run, read_status(run)).warn({}, "")  # resumed, but no server has reported yet
    assert read() == (6, "")


def test_env_steps_are_written_now_and_then_and_what_has_ended_training(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    file = StatusFile(run)
    for now[0], env_steps, written in ((1.0, 10, 0), (11.0, 90, 90), (12.0, 95, 90)):
        file.note_env_steps(env_steps)
        file.warn({}, "")
        assert read_status(run).env_steps == written
    file.note_stop("win ≥ 0.9")
    file.enter("done", 100)
    assert (read_status(run).env_steps, read_status(run).stopped_by) == (100, "win ≥ 0.9")
    StatusFile(run, read_status(run))  # resumed
    assert read_status(run).stopped_by == ""


def test_a_full_disk_keeps_the_last_status_and_ends_nothing(run: RunDirectory) -> None:
    program = """
from muxrl.orchestrator.records.run_status import StatusFile
file = StatusFile(run)
give_room(10)
file.enter("running", 0)
"""
    done = with_little_room(run.path, program)
    assert done.returncode == 0, done.stderr
    assert "status.json cannot be written: [Errno 27] File too large" in done.stderr
    assert read_status(run).state == "starting"


def test_a_file_that_is_no_status_is_refused(run: RunDirectory) -> None:
    (run.path / "status.json").write_text('{"state": "done"}')
    with pytest.raises(NotARunDirectory, match=r"status\.json is broken"):
        read_status(run)


@pytest.mark.parametrize(
    ("state", "cause", "note"),
    [
        ("failed", "server 'ppo' died", "ended as failed: server 'ppo' died"),
        ("interrupted", "interrupted", "ended as interrupted: interrupted"),
        ("running", "", "had not ended when these results were read: it still runs or was killed"),
        ("done", "", None),
    ],
)
def test_the_report_notes_how_the_run_ended(
    run: RunDirectory, state: str, cause: str, note: str | None
) -> None:
    StatusFile(run).enter(state, 10, cause)  # type: ignore[arg-type]
    write_report(run)
    summary = json.loads((run.path / "summary.json").read_text())
    assert (summary["states"], summary["causes"]) == ([state], [cause])
    text = (run.path / "summary.md").read_text()
    if note is None:
        assert " ended as " not in text
    else:
        assert f"**Note:** run {run.name}: {note}." in text


def test_an_existing_run_directory_is_refused(tmp_path: Path, muxrl: Muxrl) -> None:
    (tmp_path / "kept").write_text("mine")
    told = muxrl("launch", "chase_scripted", "--run-dir", tmp_path, code=2)
    assert f"muxrl: {tmp_path} exists already" in told.err
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize(
    ("state", "host", "expected"),
    [
        ("running", None, "interrupted"),
        ("evaluating", None, "interrupted"),
        ("running", "elsewhere", "running"),
        ("done", None, "done"),
        ("failed", None, "failed"),
    ],
)
def test_a_run_whose_process_is_gone_was_interrupted(
    run: RunDirectory, state: str, host: str | None, expected: str
) -> None:
    StatusFile(run)
    status = read_status(run)
    assert status.state_now == "starting", "this process lives"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    changed = {"state": state, "pid": gone.pid, **({"host": host} if host else {})}
    write_json(run.path / "status.json", asdict(status) | changed)
    assert read_status(run).state_now == expected
