"""A sweep's directory: trials read back as they were written, runs that never overwrite."""

import threading
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace

import pytest

from muxrl.orchestrator.config import ExperimentConfig, StopConfig, to_yaml
from muxrl.orchestrator.errors import NotASweepDirectory, OtherFormat, SweepIsRunning
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.storage.checkpoints import (
    CheckpointFolder,
    Manifest,
    SavedServer,
    hash_files,
)
from muxrl.orchestrator.sweeps.directory import FINAL_RECORD_FILE, SweepDirectory, TrialRecord
from muxrl.orchestrator.sweeps.runner import _resumed
from muxrl.orchestrator.sweeps.schema import SweepConfig
from muxrl.orchestrator.sweeps.search import TableSearch
from muxrl.orchestrator.sweeps.trial import IS_FINISHED
from muxrl.orchestrator.sweeps.tuner import TrialLog


def record(number=0, assignment="a:x", **values):
    return TrialRecord(
        f"{number}-x", assignment, {"r": "a"}, {"servers.r.settings.lr": 0.1}, 3, **values
    )


@pytest.fixture
def folder(tmp_path):
    folder = SweepDirectory.create_at(tmp_path / "sweep")
    folder.config_file.write_text("{}")
    folder.write_trials([record()])
    return folder


def test_trials_come_back_as_they_were(folder):
    records = [record(0, status="done", metric=1.5, run_dir="runs/0-x"), record(1)]
    folder.write_trials(records)
    assert SweepDirectory.open(folder.path).trials() == records


def test_what_is_no_number_is_none(folder):
    folder.write_trials([record(metric=float("nan"))])
    assert folder.trials()[0].metric is None


def test_names_are_never_taken_twice(tmp_path):
    now = datetime(2026, 1, 2, 3, 4, 5)
    paths = [SweepDirectory.create(tmp_path, "mine", now).path.name for _ in range(2)]
    assert paths == ["mine-20260102-030405", "mine-20260102-030405-2"]
    with pytest.raises(FileExistsError):
        SweepDirectory.create_at(tmp_path / paths[0])


def test_a_trial_that_begins_again_gets_a_new_run(folder):
    for name in ("0-x", "0-x-2", "0-x-3"):
        path = folder.new_run("0-x")
        assert path == folder.runs / name
        path.mkdir()


def test_what_is_no_sweep_says_why(folder, tmp_path):
    with pytest.raises(NotASweepDirectory, match="there is no such folder"):
        SweepDirectory.open(tmp_path / "nowhere")
    with pytest.raises(NotASweepDirectory, match=r"has no sweep\.yaml"):
        SweepDirectory.open(tmp_path)
    (folder.path / "trials.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(NotASweepDirectory, match=r"trials\.jsonl cannot be read"):
        folder.trials()


def test_a_newer_muxrl_s_trials_are_refused(folder):
    path = folder.path / "trials.jsonl"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(OtherFormat, match=r"made by a newer muxrl \(format 2; .* up to 1\)"):
        folder.trials()


def test_one_process_runs_it_at_a_time(folder):
    with folder.locked(), pytest.raises(SweepIsRunning, match="being run by another process"):
        folder.locked().__enter__()
    with folder.locked():
        pass


PLAN = SimpleNamespace(config_of=lambda trial: ExperimentConfig(stop=StopConfig(env_steps=50)))


@pytest.mark.parametrize("status", ["done", "stopped_early"])
def test_finished_trials_stay_when_a_sweep_is_resumed(folder, status):
    finished = record(status=status, metric=2.0, run_dir="runs/0-x")
    assert _resumed(finished, folder, PLAN) is finished


@pytest.mark.parametrize(("env_steps", "is_kept"), [(50, True), (40, False)])
def test_a_trial_that_is_done_goes_on_if_the_budget_is_larger_by_now(folder, env_steps, is_kept):
    run = RunDirectory.create_at(folder.new_run("0-x"))
    run.write_config(to_yaml(ExperimentConfig(stop=StopConfig(env_steps=env_steps))))
    commit_checkpoint(run.path)
    finished = record(status="done", metric=2.0, run_dir="runs/0-x")
    (run.path / FINAL_RECORD_FILE).write_text(finished.to_json())
    resumed = _resumed(finished, folder, PLAN)
    assert resumed == (finished if is_kept else record(metric=2.0, run_dir="runs/0-x"))
    # The sweep may have been killed before it wrote that down.
    running = record(status="running", run_dir="runs/0-x")
    assert taken_up(running, folder) == resumed


def taken_up(record, folder):
    """The record with which a sweep goes on, whose table says this."""
    folder.write_trials([record])
    return _resumed(folder.trials()[0], folder, PLAN)


def commit_checkpoint(run):
    checkpoints = CheckpointFolder(run / "checkpoints")
    run.mkdir(exist_ok=True)
    draft = checkpoints.draft(40)
    (draft / "a").mkdir()
    (draft / "a" / "weights").write_text("1")
    servers = {"a": SavedServer("A2C", 1, hash_files(draft / "a"))}
    checkpoints.commit(draft, Manifest(40, 1.0, "2026", None, servers, {}, {}, {}))
    return checkpoints


def test_what_a_simulation_refused_is_not_tried_again(folder):
    refused = record(status="failed", cause="no such size", assignment="")
    assert _resumed(refused, folder, PLAN) is refused


def test_trials_that_are_stopped_last_are_waited_for(folder):
    run = folder.new_run("0-x")
    run.mkdir()
    mine = record(status="running", run_dir="runs/0-x")
    trial_log = TrialLog(folder, [mine])
    trial = SimpleNamespace(
        config={"trial": mine.id}, last_result={IS_FINISHED: False}, is_finished=lambda: True
    )
    trial_log.on_trial_complete(0, [trial], trial)
    saved = threading.Timer(0.5, lambda: (run / FINAL_RECORD_FILE).write_text(mine.to_json()))
    saved.start()
    trial_log.on_step_end(1, [trial])
    assert folder.final_record_of(mine) is not None
    saved.join()


def test_how_far_a_failed_trial_came_is_known(folder):
    run = folder.new_run("0-x")
    run.mkdir()
    mine = record(status="running", run_dir="runs/0-x")
    final = record(status="failed", cause="it rained", env_steps=150, time_s=2.0, metric=1.0)
    (run / FINAL_RECORD_FILE).write_text(final.to_json())
    trial = SimpleNamespace(config={"trial": mine.id}, last_result=None)
    TrialLog(folder, [mine]).on_trial_error(0, [trial], trial)
    assert mine == replace(final, run_dir="runs/0-x")


@pytest.mark.parametrize("status", ["running", "failed", "interrupted", "waiting"])
def test_others_without_a_checkpoint_begin_again(folder, status):
    begun = record(status=status, metric=2.0, run_dir="runs/0-x", cause="it rained", env_steps=5)
    assert _resumed(begun, folder, PLAN) == record()


@pytest.mark.parametrize("status", ["running", "failed", "interrupted"])
def test_a_trial_with_a_whole_checkpoint_goes_on_in_its_run_directory(folder, status):
    checkpoints = commit_checkpoint(folder.new_run("0-x"))
    begun = record(status=status, metric=2.0, run_dir="runs/0-x", cause="it rained")
    resumed = _resumed(begun, folder, PLAN)
    assert resumed == record(metric=2.0, run_dir="runs/0-x")
    plan = SimpleNamespace(config=SweepConfig())
    given = TableSearch(plan, TrialLog(folder, [resumed, record(1)]))
    run_dirs = [given.suggest(str(i))["run_dir"] for i in range(2)]
    assert run_dirs == [str(folder.runs / "0-x"), str(folder.runs / "1-x")]

    (checkpoints.path / "40" / "a" / "weights").write_text("2")  # not what was written
    assert _resumed(begun, folder, PLAN) == record()


def test_a_trial_that_ended_just_before_its_sweep_was_killed_is_finished(folder):
    run = folder.new_run("0-x")
    run.mkdir()
    outcome = record(status="done", metric=3.0)
    (run / FINAL_RECORD_FILE).write_text(outcome.to_json())
    running = record(status="running", run_dir="runs/0-x")
    assert taken_up(running, folder) == record(status="done", metric=3.0, run_dir="runs/0-x")
    # "stopped_early" may be the end of the sweep, not its scheduler's word.
    for status in ("failed", "stopped_early"):
        (run / FINAL_RECORD_FILE).write_text(record(status=status).to_json())
        assert taken_up(running, folder) == record()
    (run / FINAL_RECORD_FILE).write_text("{")
    assert taken_up(running, folder) == record()
