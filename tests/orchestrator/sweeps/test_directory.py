"""A sweep's directory: trials are read back as written, and runs never overwrite others."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import ray

from muxrl.orchestrator.config import ExperimentConfig, StopConfig, to_yaml
from muxrl.orchestrator.errors import NotASweepDirectory, RunFailed, SweepIsRunning
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.rows import EvaluationRow, JointRow
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import StatusFile
from muxrl.orchestrator.storage.checkpoints import (
    CheckpointFolder,
    Manifest,
    SavedServer,
    hash_files,
)
from muxrl.orchestrator.storage.process import Process
from muxrl.orchestrator.sweeps.directory import LAST_FILE, SweepDirectory, TrialRecord
from muxrl.orchestrator.sweeps.runner import _resumed, resume_sweep
from muxrl.orchestrator.sweeps.schema import SweepConfig
from muxrl.orchestrator.sweeps.search import TableSearch
from muxrl.orchestrator.sweeps.trial import IS_FINISHED
from muxrl.orchestrator.sweeps.trial_log import TrialLog


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


def test_trials_are_read_back_as_they_were_written(folder):
    records = [record(0, status="done", metric=1.5, run_dir="runs/0-x"), record(1)]
    folder.write_trials([*records, record(2, metric=float("nan"))])
    assert SweepDirectory.open(folder.path).trials() == [*records, record(2)], "no number is none"


def test_a_folder_that_is_no_sweep_is_refused_with_the_reason(folder, tmp_path):
    with pytest.raises(NotASweepDirectory, match="there is no such folder"):
        resume_sweep(tmp_path / "nowhere")
    (folder.path / "trials.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(NotASweepDirectory, match=r"trials\.jsonl cannot be read"):
        folder.trials()


def test_only_one_process_at_a_time_runs_a_sweep(folder):
    with folder.locked(), pytest.raises(SweepIsRunning, match="another process is running"):
        resume_sweep(folder.path)


PLAN = SimpleNamespace(config_of=lambda trial: ExperimentConfig(stop=StopConfig(env_steps=50)))


def begun(folder, state=None, cause=""):
    """Makes a trial's run with 150 recorded env steps, in this state; None: it has none."""
    run = RunDirectory.create_at(folder.runs / "0-x")
    run.write_plan({"servers": {"r": {"algorithm": "A2C", "agents": ["x"]}}})
    with MetricsWriter(run) as metrics:
        metrics.joint(JointRow(env_steps=150, time_s=2.0, cpu_s=4.0))
        for replaced, value in ((None, 3.0), ("r", 0.0)):
            metrics.evaluation(
                EvaluationRow(env_steps=90, replaced=replaced, returns={"x": [value]})
            )
    if state is not None:
        StatusFile(run).enter(state, 150, cause)
    return run


KNOWN = {
    **{"metric": 3.0, "metric_source": "evaluation"},
    **{"env_steps": 150, "time_s": 2.0, "cpu_s": 4.0},
}


@pytest.mark.parametrize(("env_steps", "is_kept"), [(50, True), (40, False)])
def test_a_finished_trial_goes_on_if_the_budget_has_grown(folder, env_steps, is_kept):
    run = begun(folder, "done")
    run.write_config(to_yaml(ExperimentConfig(stop=StopConfig(env_steps=env_steps))))
    commit_checkpoint(run.path)
    finished = record(status="done", run_dir="runs/0-x", **KNOWN)
    resumed = _resumed(finished, folder, PLAN)
    assert resumed == (finished if is_kept else record(run_dir="runs/0-x", **KNOWN))
    # The sweep may have been killed before it wrote this state into its table.
    assert taken_up(record(status="running", run_dir="runs/0-x"), folder) == resumed


def taken_up(record, folder):
    """Returns the record with which a sweep goes on if its table has this record."""
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


def test_a_sweep_waits_for_trials_that_are_stopped_last(folder):
    run = folder.new_run("0-x")
    run.mkdir()
    mine = record(status="running", run_dir="runs/0-x")
    trial_log = TrialLog(folder, [mine])
    trial = SimpleNamespace(
        config={"trial": mine.id}, last_result={IS_FINISHED: False}, is_finished=lambda: True
    )
    trial_log.on_trial_complete(0, [trial], trial)
    assert mine.status == "stopped_early"
    saved = threading.Timer(0.5, lambda: (run / LAST_FILE).write_text(mine.to_json()))
    saved.start()
    trial_log.on_step_end(1, [trial])
    assert (run / LAST_FILE).is_file()
    saved.join()
    trial_log.on_trial_complete(2, [trial], trial)
    assert mine.status == "done", "it had come to its end when it was ended"


def test_the_progress_of_a_failed_trial_is_known(folder, tmp_path):
    begun(folder)
    mine = record(status="running", run_dir="runs/0-x")
    error = tmp_path / "error.pkl"
    raised = ray.exceptions.RayTaskError("step", "", RunFailed("it rained; take an umbrella"))
    error.write_bytes(ray.cloudpickle.dumps(raised))
    trial = SimpleNamespace(config={"trial": mine.id}, last_result=None, pickled_error_file=error)
    TrialLog(folder, [mine]).on_trial_error(0, [trial], trial)
    cause = "it rained; take an umbrella"
    assert mine == record(status="failed", run_dir="runs/0-x", cause=cause, **KNOWN)


@pytest.mark.parametrize(
    ("status", "assignment", "stays"),
    [
        *((status, "a:x", True) for status in ("done", "stopped_early")),
        ("failed", "", True),  # its simulation would refuse the settings again
        *((status, "a:x", False) for status in ("running", "failed", "interrupted", "waiting")),
    ],
)
def test_finished_trials_stay_and_others_without_a_checkpoint_begin_again(
    folder, status, assignment, stays
):
    known = {"metric": 2.0, "run_dir": "runs/0-x", "cause": "it rained", "env_steps": 5}
    before = record(status=status, assignment=assignment, **known)
    resumed = _resumed(before, folder, PLAN)
    assert (resumed is before) is stays
    assert resumed == (before if stays else record())


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

    (checkpoints.path / "40" / "a" / "weights").write_text("2")  # no longer what was written
    assert _resumed(begun, folder, PLAN) == record()


def test_a_trial_whose_sweep_was_killed_has_the_state_of_its_run(folder):
    cut = record(status="running", run_dir="runs/0-x")
    run = begun(folder)
    assert taken_up(cut, folder) == record(), "it has no checkpoint"
    for state in ("running", "done", "interrupted", "failed"):
        StatusFile(run).enter(state, 150, "it rained")
        (told,) = folder.trials()
        cause = "" if state == "running" else "it rained"
        assert told == replace(cut, status=state, cause=cause, **KNOWN)
    # A running sweep knows better: the run's state may be from before it was resumed.
    with folder.locked():
        folder.write_owner(Process.here(ends_on_sigterm=True))
        assert folder.trials() == [replace(cut, **KNOWN)]
    (run.path / "status.json").unlink()
    (run.metrics / "joint.jsonl").write_text("{\n")
    assert folder.trials() == [cut]
