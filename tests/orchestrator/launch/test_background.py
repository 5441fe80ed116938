"""The handle of a run in another process; here a script stands in for the run."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.orchestrator.launch.test_resuming import chase

from muxrl import launch
from muxrl.orchestrator.config import to_yaml
from muxrl.orchestrator.errors import CannotResume, ConfigError
from muxrl.orchestrator.launch.background import BackgroundRun
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.run_directory import RunDirectory

RUNS = """
import pathlib, sys
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import StatusFile
status = StatusFile(RunDirectory(pathlib.Path(sys.argv[1])))
status.enter("running", 0)
try:
    print("runs", flush=True)
    sys.stdin.read()
    status.enter("done", 700)
except KeyboardInterrupt:
    status.enter("interrupted", 300, "interrupted")
"""
INTERRUPTIBLE = """
import signal
def interrupt(*_): raise KeyboardInterrupt
signal.signal(signal.SIGTERM, interrupt)
"""
Start = Callable[[str], BackgroundRun]
Processes = list[subprocess.Popen[bytes]]


@pytest.fixture
def folder(tmp_path: Path) -> RunDirectory:
    run = RunDirectory.create_at(tmp_path / "chase")
    run.write_plan({"servers": {}, "assignment": "", "seed": 1})
    return run


@pytest.fixture
def processes() -> Iterator[Processes]:
    started: Processes = []
    yield started
    for process in started:
        with process:
            process.kill()


@pytest.fixture
def start(folder: RunDirectory, processes: Processes) -> Start:
    def start(code: str) -> BackgroundRun:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(folder.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        processes.append(process)
        return BackgroundRun(folder, process)

    return start


def test_the_handle_gives_the_state_of_the_run_and_waits_for_its_result(
    folder: RunDirectory, start: Start, processes: Processes
) -> None:
    run = start("input()\n" + INTERRUPTIBLE + RUNS)
    (process,) = processes
    assert run.status().state == "starting"
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"runs\n"
    with MetricsWriter(folder) as metrics:
        metrics.joint({"env_steps": 120, "time_s": 1.0})
    assert (run.status().state, run.status().env_steps) == ("running", 120)
    assert repr(run) == f"BackgroundRun('{folder.path}', running)"
    with pytest.raises(TimeoutError, match=r"has not ended after 0\.01 s: it is running"):
        run.result(timeout_s=0.01)
    process.stdin.close()
    result = run.result()
    assert (result.outcome, result.env_steps, result.time_s) == ("done", 700, 1.0)
    again = run.stop()
    assert replace(again, report=None) == replace(result, report=None)
    assert again.report is not None


def test_stop_ends_the_run_as_a_signal_does(start: Start, processes: Processes) -> None:
    run = start(INTERRUPTIBLE + RUNS)
    assert processes[0].stdout is not None
    processes[0].stdout.readline()
    result = run.stop()
    assert (result.outcome, result.problem, result.env_steps) == ("interrupted", "interrupted", 300)


def test_an_error_names_the_log_of_a_run_whose_process_died(
    folder: RunDirectory, start: Start, processes: Processes
) -> None:
    run = start("raise SystemExit(3)")
    result = run.result()
    assert (result.outcome, result.report) == ("failed", None)
    assert result.problem == (
        f"its process ended with exit code 3 while it was starting; see {folder.log('launch')}"
    )
    killed = start(RUNS)
    assert processes[1].stdout is not None
    processes[1].stdout.readline()
    processes[1].send_signal(signal.SIGKILL)
    result = killed.result()
    assert (result.outcome, result.exit_code) == ("failed", 1)
    assert "ended by SIGKILL while it was running" in result.problem


def test_mistakes_are_refused_before_a_process_is_started(folder: RunDirectory) -> None:
    with pytest.raises(ConfigError, match="unknown key 'seeed'"):
        launch("chase", {"seeed": 1}, wait=False)
    with pytest.raises(TypeError, match="show_progress needs wait=True"):
        launch("chase", show_progress=True, wait=False)
    folder.write_config(to_yaml(chase()))
    with pytest.raises(CannotResume, match="checkpoint"):
        launch(folder.path, resume=True, wait=False)
    assert not folder.log("launch").exists()
