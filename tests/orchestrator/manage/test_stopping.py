"""Which processes may be told to end, and messages about others; tests/faults has whole runs."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from muxrl.orchestrator.errors import CannotStop, NotARunDirectory, NotEnded
from muxrl.orchestrator.league.directory import LeagueDirectory
from muxrl.orchestrator.manage import stopping
from muxrl.orchestrator.manage.listing import Listing
from muxrl.orchestrator.manage.stopping import stop
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import StatusFile, read_status
from muxrl.orchestrator.storage.folders import Folder
from muxrl.orchestrator.storage.json_files import write_json
from muxrl.orchestrator.storage.process import Process, start_of
from muxrl.orchestrator.sweeps.directory import SweepDirectory, TrialRecord

STUBBORN = "import signal; signal.signal(15, signal.SIG_IGN); print(flush=True); input()"
MEEK = "print(flush=True); input()"
Child = subprocess.Popen[bytes]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create_at(tmp_path / "tag")


@pytest.fixture
def sweep(tmp_path: Path) -> SweepDirectory:
    made = SweepDirectory.create(tmp_path, "tuned", datetime(2026, 11, 20))
    made.config_file.write_text("name: tuned\n")
    made.write_trials([TrialRecord("0-a", "a", {"all": "dqn"}, {}, 0, status="done")])
    return made


@pytest.fixture
def child(request: pytest.FixtureRequest) -> Iterator[Child]:
    command = [sys.executable, "-c", getattr(request, "param", MEEK)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.readline()
        yield started
        started.kill()


def belongs_to(run: RunDirectory, pid: int, state: str = "running", **changed: Any) -> None:
    StatusFile(run, ends_on_sigterm=True)
    status = read_status(run)
    assert status is not None
    known = {"pid": pid, "pid_started": start_of(pid), "state": state}
    write_json(run.path / "status.json", asdict(status) | known | changed)


def stopped(path: Path, timeout_s: float = 20.0) -> tuple[bool, str]:
    return stop(path, timeout_s, lambda sentence: None)


def test_a_process_that_ends_without_a_final_state_is_reported(
    run: RunDirectory, child: Child
) -> None:
    belongs_to(run, child.pid)
    said: list[str] = []
    is_well, sentence = stop(run.path, 20.0, said.append)
    assert child.wait(20) == -signal.SIGTERM
    assert is_well
    assert sentence == (f"run '{run.path}' has ended: its process {child.pid} was killed")
    assert f"sent SIGTERM to process {child.pid}" in said[0]


@pytest.mark.parametrize("child", [STUBBORN], indirect=True)
def test_a_process_that_does_not_end_is_reported(run: RunDirectory, child: Child) -> None:
    belongs_to(run, child.pid)
    with pytest.raises(NotEnded, match=rf"its process {child.pid} still runs after 0 s"):
        stopped(run.path, 0.0)
    assert child.poll() is None


@pytest.mark.parametrize("child", [STUBBORN], indirect=True)
@pytest.mark.parametrize(
    ("state", "cause", "is_well", "how"),
    [
        ("interrupted", "", True, "interrupted, at 700 env steps"),
        ("failed", "disk full", False, "failed (disk full), at 700 env steps"),
    ],
)
def test_a_program_that_outlives_its_run_is_not_waited_for(
    run: RunDirectory,
    child: Child,
    monkeypatch: pytest.MonkeyPatch,
    state: str,
    cause: str,
    is_well: bool,
    how: str,
) -> None:
    belongs_to(run, child.pid)
    lock = run.lock.open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    steps: list[str] = []

    def pass_time(_: float) -> None:
        if not steps:
            belongs_to(run, child.pid, state, cause=cause, env_steps=700)
            steps.append("its report is still written")
        else:
            lock.close()
            steps.append("and now it is")

    monkeypatch.setattr(stopping.time, "sleep", pass_time)
    assert stopped(run.path) == (is_well, f"run '{run.path}' has ended: {how}")
    assert len(steps) == 2
    assert child.poll() is None


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"pid_started": "long ago"}, "is over: its process .* was killed"),
        ({"host": "elsewhere"}, "is on the host 'elsewhere', as process .*; stop it there"),
        ({"host": "elsewhere", "pid_started": "long ago"}, "is on the host 'elsewhere', as proces"),
        ({"ends_on_sigterm": False}, "would not end cleanly"),
        ({"pid_started": None}, "would not end cleanly"),
        ({"state": "done"}, "is over: done, at 0 env steps"),
        ({"state": "failed", "cause": "it rained"}, r"is over: failed \(it rained\)"),
    ],
)
def test_processes_that_are_not_the_run_s_are_left_alone(
    run: RunDirectory, child: Child, changed: dict[str, Any], sentence: str
) -> None:
    belongs_to(run, child.pid)
    belongs_to(run, child.pid, **changed)
    with pytest.raises(CannotStop, match=sentence):
        stopped(run.path)
    assert child.poll() is None


def test_a_folder_that_is_no_run_and_a_run_that_has_not_begun_are_refused(
    run: RunDirectory, tmp_path: Path
) -> None:
    with pytest.raises(CannotStop, match=r"has no status\.json"):
        stopped(run.path)
    with pytest.raises(NotARunDirectory):
        stopped(tmp_path)


def test_a_trial_is_ended_with_its_sweep(sweep: SweepDirectory) -> None:
    trial = RunDirectory.create_at(sweep.runs / "0-a")
    belongs_to(trial, os.getpid())
    with pytest.raises(CannotStop, match=f"is a trial of the sweep '{sweep.path}'; stop the sweep"):
        stopped(trial.path)


def runs_in(folder: Folder, pid: int) -> None:
    host = Process.here(ends_on_sigterm=True).host
    folder.write_owner(Process(host, pid, start_of(pid), True))


def test_a_sweep_ends_once_its_lock_is_free(sweep: SweepDirectory, child: Child) -> None:
    runs_in(sweep, child.pid)
    with pytest.raises(CannotStop, match="is not running: 1 done"):
        stopped(sweep.path)
    assert child.poll() is None
    with sweep.locked():
        assert stopped(sweep.path) == (True, f"sweep '{sweep.path}' has ended: 1 done")
    assert child.wait(20) == -signal.SIGTERM


def test_a_league_ends_once_its_lock_is_free(
    sweep: SweepDirectory, tmp_path: Path, child: Child
) -> None:
    league = LeagueDirectory.create_at(tmp_path / "league")
    league.config_file.write_text("name: rivals\n")
    for number in (1, 2):
        shutil.copytree(sweep.path, league.round(number))
    runs_in(league, child.pid)
    go_on = f"continue with: muxrl league {league.path} --resume"
    with pytest.raises(CannotStop, match=f"league '{league.path}' is not running: {go_on}"):
        stopped(league.path)
    with league.locked():
        assert stopped(league.path) == (True, f"league '{league.path}' has ended: {go_on}")
        assert child.wait(20) == -signal.SIGTERM
        with pytest.raises(CannotStop, match="does not name its process yet"):
            stopped(league.path)
    names = [entry["name"] for entry in Listing(tmp_path).read()["entries"]]
    assert {"league/rounds/01", "league/rounds/02"} < set(names)


def test_a_sweep_of_an_unknown_process_is_left_alone(sweep: SweepDirectory) -> None:
    with sweep.locked(), pytest.raises(CannotStop, match="does not name its process yet"):
        stopped(sweep.path)
