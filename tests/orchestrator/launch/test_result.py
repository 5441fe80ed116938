"""A run's result and its frames, as read from the run's directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.orchestrator.records.recorded import evaluation, new_run, write_whole_run

from muxrl import RunResult
from muxrl.orchestrator.errors import MalformedMetrics, NotARunDirectory
from muxrl.orchestrator.records.frames import training_frame
from muxrl.orchestrator.records.metrics import MetricsWriter, last_row
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import StatusFile
from muxrl.orchestrator.storage.json_files import write_json


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return new_run(tmp_path)


def play(run: RunDirectory) -> StatusFile:
    status = StatusFile(run)
    status.enter("running", 0)
    with MetricsWriter(run) as metrics:
        for replaced in (None, "wolves"):
            metrics.evaluation(evaluation(0, replaced, [1.0], [None], [2.0]))
        for env_steps in (100, 250):
            metrics.joint({"env_steps": env_steps, "time_s": env_steps / 100})
        learner = {"default_policy": {"total_loss": 0.5}}
        metrics.server("wolves", {"env_steps": 90, "time_s": 0.9, "learner": learner})
        metrics.server("sheep", {"env_steps": 80, "time_s": 0.8, "loss": None})
    return status


def test_a_run_that_is_over_reads_as_it_ended(run: RunDirectory) -> None:
    play(run).enter("failed", 260, "server 'sheep' died")
    result = RunResult.read(str(run.path))
    assert (result.outcome, result.exit_code) == ("failed", 1)
    assert result.problem == "server 'sheep' died"
    assert (result.env_steps, result.time_s) == (260, 2.5)
    assert result.report is not None
    assert [server.server_id for server in result.report.servers] == ["wolves", "sheep"]


def test_a_notebook_shows_the_verdicts_and_the_servers(run: RunDirectory) -> None:
    play(run).enter("failed", 260, "server <sheep> died")
    page = RunResult.read(run.path)._repr_html_()
    assert f"{run.path.name}: failed, 260 env steps" in page
    assert "server &lt;sheep&gt; died" in page
    assert page.count("<tr") == 3
    nothing = RunResult(run.path, "failed", "no server listened", 0, 0.0, None)
    assert "no server listened" in nothing._repr_html_()


def test_a_run_that_goes_on_reads_as_far_as_it_has_come(run: RunDirectory) -> None:
    play(run)
    result = RunResult.read(run.path)
    assert (result.outcome, result.problem, result.env_steps) == ("running", "", 250)
    assert len(result.frame()) == 6


def test_a_run_that_was_killed_reads_as_interrupted(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    monkeypatch.setattr(os, "getpid", lambda: gone.pid)
    play(run)
    result = RunResult.read(run.path)
    assert (result.outcome, result.exit_code) == ("interrupted", 130)
    assert result.problem == "its process was killed while the run was running"


def test_a_run_that_never_began_has_no_result(run: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(NotARunDirectory, match=r"no status\.json: its run never began"):
        RunResult.read(run.path)
    StatusFile(run)
    assert RunResult.read(run.path).report is None
    with pytest.raises(NotARunDirectory, match="no such folder"):
        RunResult.read(tmp_path / "nowhere")


def test_unknown_text_is_none_and_unknown_numbers_are_nan(run: RunDirectory) -> None:
    play(run)
    frame = RunResult.read(run.path).frame()
    assert set(frame["replaced"]) == {None, "wolves"}
    assert frame["return"].isna().sum() == 2
    assert str(frame["return"].dtype) == "float64"


def test_training_has_a_row_for_each_iteration(run: RunDirectory) -> None:
    play(run)
    frame = RunResult.read(run.path).training()
    assert list(frame["server"]) == ["wolves", "sheep"]
    assert list(frame["algorithm"]) == ["QMIX", "PPO"]
    assert list(frame["env_steps"]) == [90, 80]
    losses = frame["learner.default_policy.total_loss"]
    assert losses[0] == 0.5
    assert losses.isna()[1]
    assert "learner" not in frame.columns


def test_a_run_without_iterations_has_columns_but_no_rows(tmp_path: Path) -> None:
    run = RunDirectory.create_at(tmp_path / "none")
    run.write_plan({"servers": {}, "assignment": "", "seed": 1})
    frame = training_frame([run.path])
    assert frame.empty
    assert list(frame.columns[-2:]) == ["time_s", "env_steps"]


def test_the_newest_record_is_found_in_files_of_any_length(tmp_path: Path) -> None:
    path = tmp_path / "joint.jsonl"
    assert last_row(path, dict) is None
    path.write_bytes(b'{"a": 1}')  # a line without its end is still being written
    assert last_row(path, dict) is None
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n{"a"')
    assert last_row(path, dict) == {"a": 2}
    long = b'{"a": "' + b"x" * 100_000 + b'"}\n'
    path.write_bytes(b'{"a": 1}\n' * 10_000 + long)
    assert last_row(path, dict) == {"a": "x" * 100_000}
    path.write_bytes(b'{"a": 1}\n' * 10_000 + b"no record\n")
    with pytest.raises(MalformedMetrics, match="line 10001"):
        last_row(path, dict)


def test_results_of_several_seeds_can_be_joined(tmp_path: Path) -> None:
    runs = [new_run(tmp_path, seed) for seed in (1, 2)]
    for each in runs:
        write_whole_run(each)
    write_json(runs[0].path / "ignored.json", {})
    assert set(training_frame([each.path for each in runs])["seed"]) == {1, 2}
