"""A tracker may fail in any way: the run logs it once, and goes on without it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.orchestrator.trackers.tracked_runs import end, tracked_run
from tests.processes import MARK, assert_all_end

from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.trackers import tracking as tracking_module
from muxrl.orchestrator.trackers.tracking import Tracking

ROOT = Path(__file__).resolve().parents[3]
HERE = "tests.orchestrator.trackers.faulty"
ROW = {"env_steps": 100, "loss": 0.5}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunDirectory]:
    monkeypatch.setenv(MARK, tmp_path.name)
    monkeypatch.chdir(ROOT)  # the trackers are found there, as a user's are
    yield tracked_run(tmp_path)
    assert_all_end(tmp_path.name, 10.0)


def notes(run: RunDirectory) -> list[Any]:
    path = run.path.parent / "notes.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def wait_for(run: RunDirectory, count: int) -> None:
    """Waits until the tracker has written down so many calls."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (run.path.parent / "notes.jsonl").exists() and len(notes(run)) >= count:
            return
        time.sleep(0.1)
    raise AssertionError("it was told too little")


def test_a_tracker_gets_everything_from_start_to_report(
    run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        closing(Tracking(run, [f"{HERE}:Notes"])) as trackers,
        MetricsWriter(run, trackers.receive) as metrics,
    ):
        metrics.server("sheep", ROW)
        metrics.joint({"env_steps": 200})  # this row has no numbers
        wait_for(run, 2)
        begin = metrics.length("sheep")
        metrics.server("sheep", {"env_steps": 300, "loss": 0.125})
        wait_for(run, 3)
        metrics.cut_back_server("sheep", begin)  # the server goes back to its checkpoint
        metrics.server("sheep", {"env_steps": 250, "loss": 0.25})
        end(run)
    (_, about), *rest = notes(run)
    assert (about["folder"], about["project"], about["group"]) == (str(run.path), "tag", "")
    assert about["config"]["servers"]["sheep"] == {"algorithm": "PPO", "settings": {"lr": 0.001}}
    assert rest[:2] == [
        ["log", [{"sheep/loss": 0.5}, 100]],
        ["log", [{"sheep/loss": 0.125}, 300]],
    ]
    assert rest[-2:] == [["artifacts", ["summary.md", "learning.png"]], ["end", "done"]]
    assert not caplog.text


def test_a_resumed_run_continues_the_tracker_s_earlier_run(run: RunDirectory) -> None:
    with MetricsWriter(run) as metrics:
        metrics.server("sheep", ROW)
        lengths = {"sheep.jsonl": metrics.length("sheep")}
        metrics.server("sheep", {"env_steps": 150, "loss": 0.25})  # is after the checkpoint
    for resumed_at in (None, 100, 100):
        with (
            closing(Tracking(run, [f"{HERE}:Notes"], resumed_at, lengths)) as trackers,
            MetricsWriter(run, trackers.receive) as metrics,
        ):
            metrics.cut_back(lengths, 100)
            metrics.server("sheep", {"env_steps": 200, "loss": 0.125})
    begun = [what for call, what in notes(run) if call == "start"]
    assert [about["known_as"] for about in begun] == ["", "first", "after first"]
    assert [what for call, what in notes(run) if call == "end"] == ["interrupted"] * 3
    assert [what for call, what in notes(run) if call == "log"] == [
        [{"sheep/loss": 0.125}, 200]
    ] * 3


def test_an_unreadable_status_does_not_end_the_run(
    run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(Tracking(run, [f"{HERE}:Notes"])):
        (run.path / "status.json").write_text("{")
    assert notes(run)[-1] == ["end", "interrupted"]
    (said,) = caplog.messages
    assert said.startswith(
        "the run's end cannot be read, so its trackers get the state 'interrupted': "
    )
    assert "its status.json is broken" in said


@pytest.mark.parametrize(
    ("tracker", "cause"),
    [
        ("AwayAtStart", "ConnectionRefusedError: [Errno 111] Connection refused"),
        ("Raising", "RuntimeError: the quota"),
        ("Crashing", "its process died (-9)"),
        ("Absent", "has no 'Absent'"),
    ],
)
def test_a_tracker_that_fails_is_not_called_again(
    run: RunDirectory, caplog: pytest.LogCaptureFixture, tracker: str, cause: str
) -> None:
    with (
        closing(Tracking(run, [f"{HERE}:{tracker}", f"{HERE}:Notes"])) as trackers,
        MetricsWriter(run, trackers.receive) as metrics,
    ):
        deadline = time.monotonic() + 60
        while not caplog.records and time.monotonic() < deadline:
            metrics.server("sheep", ROW)
            time.sleep(0.1)
        (said,) = caplog.messages
        metrics.server("sheep", {"env_steps": 200, "loss": 0.25})
        end(run)
    assert f"without its tracker '{HERE}:{tracker}': " in said
    assert cause in said
    assert f"muxrl track {run.path} {HERE}:{tracker}" in said
    assert len(caplog.messages) == 1, "once"
    assert notes(run)[-3:] == [  # the other tracker goes on
        ["log", [{"sheep/loss": 0.25}, 200]],
        ["artifacts", ["summary.md", "learning.png"]],
        ["end", "done"],
    ]


def test_the_run_does_not_wait_for_a_tracker_that_blocks(
    run: RunDirectory, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking_module, "_END_S", 0.5)
    began_at = time.monotonic()
    trackers = Tracking(run, [f"{HERE}:Blocking"])
    with closing(trackers), MetricsWriter(run, trackers.receive) as metrics:
        metrics.server("sheep", ROW)
    assert time.monotonic() - began_at < 20
    (said,) = caplog.messages
    assert "it had not finished in the time that trackers have after a run, and was ended" in said


def test_a_tracker_ends_when_the_run_is_killed(run: RunDirectory) -> None:
    program = f"""
import sys, time
from contextlib import closing
from pathlib import Path
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.trackers.tracking import Tracking
run = RunDirectory(Path(sys.argv[1]))
trackers = Tracking(run, ["{HERE}:Notes"])
with closing(trackers), MetricsWriter(run, trackers.receive) as metrics:
    metrics.server("sheep", {ROW!r})
    time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program, str(run.path)]) as process:
        wait_for(run, 1)
        process.kill()
    assert_all_end(run.path.parent.name, 10.0)
    assert [call for call, _ in notes(run)] == ["start", "log", "end"]
    assert notes(run)[-1] == ["end", "interrupted"]


def test_a_tracker_that_cannot_be_started_does_not_end_the_run(
    run: RunDirectory, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking_module.sys, "executable", str(run.path / "no-python"))
    with closing(Tracking(run, [f"{HERE}:Notes"])):
        pass
    (said,) = caplog.messages
    assert "No such file" in said
