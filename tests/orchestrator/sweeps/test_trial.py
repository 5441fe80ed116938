"""What a trial tells Tune: each evaluation once, in order, however fast the trial is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from ray import tune

from muxrl.orchestrator.config import ExperimentConfig
from muxrl.orchestrator.records.rows import EvaluationRow, JointRow
from muxrl.orchestrator.sweeps.schema import MetricConfig, SchedulerConfig, SweepConfig
from muxrl.orchestrator.sweeps.trial import METRIC, METRIC_ENV_STEPS, Trial
from muxrl.orchestrator.sweeps.tuner import _scheduler


def run() -> Any:
    """A stand-in for what a trial reads of its run."""
    trained = JointRow(env_steps=500, episode_return_mean={"p": 0.0})
    times = {"env_steps_per_s": 0.0, "time_s": 0.0, "cpu": SimpleNamespace(now=0.0)}
    tally = SimpleNamespace(env_steps=500, row=lambda: trained, **times)
    servers = {"prey": SimpleNamespace(agents={"p": None, "q": None})}
    return SimpleNamespace(
        evaluated=None,
        tally=tally,
        experiment=SimpleNamespace(servers=servers),
        not_evaluated="",
        unsaved=(),
        snapshot=lambda: SimpleNamespace(time_left_s=None),
    )


class Told(Trial):
    """A trial whose run has the evaluations of each look, and is over after the last one."""

    def __init__(self, looks: list[list[EvaluationRow]], report_interval_s: float) -> None:
        config = SweepConfig(
            experiment=ExperimentConfig(),
            metric=MetricConfig("total"),
            report_interval_s=report_interval_s,
        )
        config.experiment.evaluation.interval_env_steps = 100
        self._plan: Any = SimpleNamespace(config=config)
        self._is_over, self._reported = False, None
        self._queued: deque[EvaluationRow] = deque()
        self._run = run()
        self._rounds = self._look(looks)

    def _look(self, looks: list[list[EvaluationRow]]) -> Iterator[None]:
        for found in looks:
            self._queued.extend(found)
            yield

    def _end(self, status: Any, cause: str = "") -> None:
        assert not self._is_over
        self._is_over = True


def results(looks: list[list[EvaluationRow]], report_interval_s: float) -> list[dict[str, Any]]:
    trial, found = Told(looks, report_interval_s), []
    while not found or not found[-1].get("done"):
        found.append(trial.step())
    return found


ROWS = [
    EvaluationRow(env_steps=100 * n, replaced=None, returns={"p": [float(n)]}) for n in range(1, 6)
]


@pytest.mark.parametrize(
    ("looks", "report_interval_s"),
    [
        ([[row] for row in ROWS], 1e9),
        ([ROWS], 1e9),
        ([[], [], ROWS[:1], [], [], [], ROWS[1:], []], 0.0),
        ([[], ROWS[:2], [], ROWS[2:]], 0.0),
    ],
    ids=["each", "all at once", "slow", "between"],
)
def test_each_evaluation_is_told_once_in_order(
    looks: list[list[EvaluationRow]], report_interval_s: float
) -> None:
    found = results(looks, report_interval_s)
    told = [(r[METRIC_ENV_STEPS], r[METRIC]) for r in found if METRIC_ENV_STEPS in r]
    assert told == [(100 * n, float(n)) for n in range(1, 6)]
    assert [r.get("done", False) for r in found] == [False] * (len(found) - 1) + [True]
    assert found[-1][METRIC] == 5.0


class TuneTrial:
    def __init__(self, trial_id: str) -> None:
        self.trial_id = trial_id

    def is_finished(self) -> bool:
        return False


def test_a_last_result_without_a_new_evaluation_is_no_measurement() -> None:
    config = SweepConfig(scheduler=SchedulerConfig("median", grace_env_steps=100))
    config.experiment.stop.env_steps = 500
    median = _scheduler(config)
    median.set_search_properties(METRIC, "max")
    # A trial that waits for its turn: no other may be paused for it.
    controller = SimpleNamespace(get_live_trials=lambda: [SimpleNamespace(status="PENDING")])
    for number in range(3):
        trial = TuneTrial(str(number))
        *others, last = results([[row] for row in ROWS] + [[]], 0.0)
        for result in others:
            assert median.on_trial_result(controller, trial, result) == median.CONTINUE
        assert METRIC_ENV_STEPS not in last
        median.on_trial_complete(None, trial, last)
    silent = TuneTrial("silent")
    median.on_trial_complete(None, silent, {"done": True})
    assert len(median._results) == 3


def test_no_trial_of_equal_curves_is_ended_because_it_is_slow() -> None:
    asha = tune.schedulers.ASHAScheduler(
        METRIC_ENV_STEPS, METRIC, "max", max_t=500, grace_period=100, reduction_factor=2,
        stop_last_trials=False,
    )  # fmt: skip
    fast, slow = ([ROWS], 1e9), ([[row] for row in ROWS], 1e9)
    for number, how in enumerate((fast, fast, fast, slow)):
        trial = TuneTrial(str(number))
        asha.on_trial_add(None, trial)
        for result in results(*how):
            assert asha.on_trial_result(None, trial, result) == asha.CONTINUE
