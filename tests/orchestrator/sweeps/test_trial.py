"""A trial reports each evaluation to Tune once and in order, however fast it is, and its end."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muxrl.orchestrator.config import to_yaml
from muxrl.orchestrator.errors import RunFailed
from muxrl.orchestrator.launch.resuming import locked
from muxrl.orchestrator.records.rows import EvaluationRow, JointRow
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.sweeps import trial as trial_module
from muxrl.orchestrator.sweeps.load import load_sweep
from muxrl.orchestrator.sweeps.plan import SweepPlan, make_plan
from muxrl.orchestrator.sweeps.trial import METRIC, METRIC_ENV_STEPS, Trial, tune_config

Looks = list[list[EvaluationRow]]


class Run:
    """Stands in for a trial's run: it has evaluations at each look, and is over after the last."""

    not_evaluated = ""
    unsaved: Sequence[str] = ()
    time_left_s: float | None = None
    evaluated: EvaluationRow | None = None
    looks: Looks = []
    error: Exception | None = None

    def __init__(
        self, experiment: Any, folder: RunDirectory, before: Any, told: Any, warned: Any
    ) -> None:
        trained = JointRow(env_steps=500, episode_return_mean={"p": 0.0})
        times = {"env_steps_per_s": 0.0, "time_s": 0.0, "cpu": SimpleNamespace(now=0.0)}
        self.tally = SimpleNamespace(env_steps=500, row=lambda: trained, **times)
        self.experiment, self.folder, self.before, self.told = experiment, folder, before, told
        self.ended: list[tuple[str, str]] = []

    def snapshot(self) -> Any:
        return SimpleNamespace(time_left_s=self.time_left_s)

    def play(self, workers: Any) -> Iterator[None]:
        for found in self.looks:
            for row in found:
                self.told(row)
            yield
        if self.error is not None:
            raise self.error

    def end(self, outcome: str, problem: str = "", advice: Any = None) -> Any:
        self.ended.append((outcome, problem))
        return SimpleNamespace(problem=problem)

    def close(self) -> None:
        self.ended.append(("closed", ""))


Begin = Callable[..., Trial]


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Begin:
    """Gives a function that begins a sweep's trial, whose run is a `Run` with these attributes."""

    def make_folder(experiment: Any, path: Path) -> RunDirectory:
        folder = RunDirectory.create_at(path)
        folder.write_config(to_yaml(experiment.config))
        return folder

    monkeypatch.setattr(trial_module, "make_folder", make_folder)
    for name in ("set_up", "workers_for", "find_user_modules"):
        monkeypatch.setattr(trial_module, name, lambda *_: None)

    def begin(*overrides: str, **values: Any) -> Trial:
        made = type("Made", (Run,), values)
        monkeypatch.setattr(trial_module, "Run", made)
        plan = planned(*overrides)
        trial = Trial.__new__(Trial)
        trial.setup(tune_config(plan.trials[0], tmp_path / "run"), plan)
        return trial

    return begin


def planned(*overrides: str) -> SweepPlan:
    zero = {"env": "muxrl.experiments.simulations.zero_cost:ZeroCost"}
    tree = {
        "experiment": {
            "simulation": zero,
            "servers": {"all": {"algorithm": "RANDOM", "agents": ["*"]}},
            "stop": {"env_steps": 500},
            "evaluation": {"interval_env_steps": 100},
        }
    }
    return make_plan(load_sweep(tree, overrides))


def results(begin: Begin, looks: Looks, report_interval_s: float, **run: Any) -> list[Any]:
    trial = begin(f"report_interval_s={report_interval_s}", looks=looks, **run)
    found: list[Any] = []
    while not found or not found[-1].get("done"):
        found.append(trial.step())
    return found


ROWS = [
    EvaluationRow(env_steps=100 * n, replaced=None, returns={"p": [float(n)]}) for n in range(1, 6)
]
EACH = [[row] for row in ROWS]


@pytest.mark.parametrize(
    ("looks", "report_interval_s"),
    [
        (EACH, 1e9),
        ([ROWS], 1e9),
        ([[], [], ROWS[:1], [], [], [], ROWS[1:], []], 1e-9),
        ([[], ROWS[:2], [], ROWS[2:]], 1e-9),
    ],
    ids=["each", "all at once", "slow", "between"],
)
def test_each_evaluation_is_reported_once_and_in_order(
    looks: Looks, report_interval_s: float, begin: Begin
) -> None:
    found = results(begin, looks, report_interval_s)
    told = [(r[METRIC_ENV_STEPS], r[METRIC]) for r in found if METRIC_ENV_STEPS in r]
    assert told == [(100 * n, float(n)) for n in range(1, 6)]
    assert [r.get("done", False) for r in found] == [False] * (len(found) - 1) + [True]
    assert found[-1][METRIC] == 5.0


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["metric.source=training"], 500),
        (["experiment.evaluation.interval_env_steps=null"], 500),
        ([], None),  # an evaluation is still to come
    ],
)
def test_training_is_reported_if_the_metric_is_of_training(
    overrides: list[str], told: int | None, begin: Begin
) -> None:
    result = begin(*overrides, "report_interval_s=1e-9", looks=[[]]).step()
    assert (result[METRIC], result.get(METRIC_ENV_STEPS)) == (0.0, told)


def test_a_resumed_trial_reports_its_newest_earlier_evaluation(begin: Begin) -> None:
    (result,) = results(begin, [], 1e9, evaluated=ROWS[2])
    assert (result[METRIC], METRIC_ENV_STEPS in result) == (3.0, False)


@pytest.mark.parametrize("time_left_s", [None, 7.5])
def test_a_trial_reports_its_time_left_if_it_is_known(
    time_left_s: float | None, begin: Begin
) -> None:
    (result,) = results(begin, [], 1e9, time_left_s=time_left_s)
    assert result.get("time_left_s") == time_left_s


UNSAVED = ["no checkpoint at the end: no room", "no copy"]
LOST = RunFailed("server 'all' ended; its log: all.log")


@pytest.mark.parametrize(
    ("run", "status", "told", "ended"),
    [
        ({}, "done", "", "done"),
        ({"not_evaluated": "nobody played"}, "failed", "nobody played", "failed"),
        ({"unsaved": UNSAVED}, "failed", "; ".join(UNSAVED), "done"),
        ({"error": LOST, "unsaved": UNSAVED}, "failed", str(LOST), "failed"),
        ({"error": ValueError("odd")}, "failed", "ValueError: odd; its log: ", "failed"),
    ],
)
def test_a_trial_ends_as_its_run_does(
    run: dict[str, Any], status: str, told: str, ended: str, begin: Begin
) -> None:
    trial = begin(**run)
    if told:
        with pytest.raises(RunFailed) as failed:
            trial.step()
        assert str(failed.value).startswith(told)
    else:
        assert trial.step()["done"]
    assert_ended(trial, status, told, (ended, last(trial)["cause"] if ended == "failed" else ""))


@pytest.mark.parametrize("unsaved", [[], UNSAVED])
def test_a_trial_that_is_ended_early_is_an_interrupted_run(unsaved: Any, begin: Begin) -> None:
    trial = begin("report_interval_s=1e-9", looks=EACH, unsaved=unsaved)
    trial.step()
    trial.cleanup()
    ended = ("interrupted", "ended by the sweep")
    assert_ended(trial, "stopped_early", "; ".join(unsaved), ended)


def last(trial: Trial) -> Any:
    return json.loads((trial._path / "trial.json").read_text())


def assert_ended(trial: Trial, status: str, cause: str, ended: tuple[str, str]) -> None:
    """Asserts that a trial has ended once, with its last line, and has released its directory."""
    trial.cleanup()
    run: Any = trial._run
    assert run.ended == [ended, ("closed", "")]
    assert last(trial)["status"] == status
    assert last(trial)["cause"].startswith(cause)
    with locked(run.folder):
        pass


def test_a_trial_goes_on_with_its_run_and_the_sweep_s_budget(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets = [["metric.source=training", f"experiment.stop.env_steps={n}"] for n in (500, 900)]
    resumed: Any = lambda experiment, *_: (experiment, "its checkpoint")  # noqa: E731
    monkeypatch.setattr(trial_module, "resume_at_checkpoint", resumed)
    for overrides, before in zip(budgets, (None, "its checkpoint"), strict=True):
        trial: Any = begin(*overrides)
        trial.step()
        assert trial._run.before == before
    config = RunDirectory.open(tmp_path / "run").read_config()
    assert (config.name, config.stop.env_steps) == (planned().trials[0].id, 900)


def test_a_trial_waits_until_the_one_before_has_noticed_its_end(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial's earlier process still runs, since its sweep was killed."""
    resumed: Any = lambda experiment, *_: (experiment, None)  # noqa: E731
    monkeypatch.setattr(trial_module, "resume_at_checkpoint", resumed)
    before = contextlib.ExitStack()
    before.enter_context(locked(RunDirectory.create_at(tmp_path / "run")))
    monkeypatch.setattr("time.sleep", lambda time_s: before.close())
    with monkeypatch.context() as impatient:
        impatient.setattr(trial_module, "_LOCK_PATIENCE_S", -1.0)
        with pytest.raises(RunFailed, match="belongs to a run that is going on"):
            begin().step()
    assert begin().step()["done"]
