"""How a sweep configures Ray Tune: its searcher, placement groups and schedulers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import tune

from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.orchestrator.sweeps.directory import SweepDirectory
from muxrl.orchestrator.sweeps.load import load_sweep
from muxrl.orchestrator.sweeps.plan import make_plan
from muxrl.orchestrator.sweeps.search import LearningSearch, TableSearch
from muxrl.orchestrator.sweeps.trial import METRIC, METRIC_ENV_STEPS
from muxrl.orchestrator.sweeps.trial_log import TrialLog
from muxrl.orchestrator.sweeps.tuner import placement, run_trials
from muxrl.servers.config import ResourcesConfig, ServerConfig

SWEEP = {
    "experiment": {
        "simulation": {"env": "muxrl.experiments.simulations.zero_cost:ZeroCost"},
        "stop": {"env_steps": 500},
    },
    "roles": {"all": ["*"]},
    "algorithms": {"random": {}},
    "parameters": {"servers.all.max_policy_lag": {"choice": [1, 2]}},
    "seeds": [0, 1],
}
Told = Callable[..., tune.TuneConfig]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Told:
    """Gives a function from overrides of a sweep to the config that Tune gets."""
    monkeypatch.setattr("os.environ", os.environ.copy())
    given: list[tune.TuneConfig] = []

    def tuner(trainable: Any, tune_config: tune.TuneConfig, run_config: tune.RunConfig) -> Any:
        given.append(tune_config)
        return SimpleNamespace(fit=lambda: None)

    monkeypatch.setattr(tune, "Tuner", tuner)

    def told(*overrides: str) -> tune.TuneConfig:
        plan = make_plan(load_sweep(SWEEP, overrides))
        run_trials(plan, TrialLog(SweepDirectory(tmp_path), plan.trials))
        return given.pop()

    return told


@pytest.mark.parametrize(
    ("searcher", "kind"), [("random", TableSearch), ("optuna", LearningSearch)]
)
def test_tune_runs_the_trials_of_the_table_or_of_a_searcher(
    searcher: str, kind: type, told: Told
) -> None:
    config = told(f"searcher={searcher}", "num_samples=3", "metric.mode=min", "max_concurrent=5")
    assert type(config.search_alg) is kind
    assert (config.metric, config.mode, config.scheduler) == (METRIC, "min", None)
    assert (config.num_samples, config.max_concurrent_trials) == (6, 5)


def test_a_placement_group_has_a_bundle_for_each_process() -> None:
    config = ExperimentConfig(
        simulation=SimulationConfig(num_processes=2, num_cpus=0.25),
        servers={
            "a": ServerConfig(resources=ResourcesConfig(num_cpus=1.0, num_gpus=0.5)),
            "b": ServerConfig(resources=ResourcesConfig(num_cpus=0.0)),
        },
    )
    # Server a, two simulations and the evaluation; a process without resources has no bundle.
    group = placement(config)
    assert group.strategy == "STRICT_PACK"
    assert group.head_bundle_is_empty, "the trial itself only watches"
    assert group.bundles == [{"CPU": 1.0, "GPU": 0.5}, *[{"CPU": 0.25}] * 3]
    del config.servers["a"]
    config.simulation.num_cpus = 0.0
    assert placement(config).bundles == [{"CPU": 0.001}], "Ray has no group of nothing"


class Trial:
    def __init__(self, trial_id: str) -> None:
        self.trial_id = trial_id

    def is_finished(self) -> bool:
        return False


# One trial waits for its turn; no other trial may be paused for it.
CONTROLLER: Any = SimpleNamespace(get_live_trials=lambda: [SimpleNamespace(status="PENDING")])


def ended_early(config: tune.TuneConfig, *values: float, env_steps: list[int]) -> list[bool]:
    """Returns which trials are ended early; a trial has the same value at all env steps."""
    scheduler: Any = config.scheduler
    scheduler.set_search_properties(METRIC, config.mode)
    scheduler.on_trial_complete(CONTROLLER, Trial("without any result"), {"done": True})
    found = []
    for number, value in enumerate(values):
        trial: Any = Trial(str(number))
        scheduler.on_trial_add(CONTROLLER, trial)
        decisions = {scheduler.CONTINUE}
        for n in env_steps:
            if scheduler.STOP not in decisions:
                result = {METRIC: value, METRIC_ENV_STEPS: n}
                decisions.add(scheduler.on_trial_result(CONTROLLER, trial, result))
        assert scheduler.PAUSE not in decisions
        found.append(scheduler.STOP in decisions)
        if not found[-1]:
            # The last result is no measurement if there was no new evaluation.
            scheduler.on_trial_complete(CONTROLLER, trial, {METRIC: -9.0, "done": True})
    return found


ASHA, MEDIAN = ["scheduler.kind=asha", "scheduler.reduction_factor=2"], ["scheduler.kind=median"]


@pytest.mark.parametrize(
    "kind", [ASHA, [*MEDIAN, "scheduler.min_samples=1"]], ids=["asha", "median"]
)
@pytest.mark.parametrize(("grace", "env_steps"), [(None, 50), (200, 200)])
def test_the_worse_trial_is_ended_after_its_grace(
    kind: list[str], grace: int | None, env_steps: int, told: Told
) -> None:
    """By default a trial may be ended after a tenth of the budget."""
    config = [*kind, f"scheduler.grace_env_steps={grace or 'null'}"]
    before, after = [env_steps - 10], [env_steps - 10, env_steps]
    assert ended_early(told(*config), 2.0, 1.0, env_steps=before) == [False, False]
    assert ended_early(told(*config), 2.0, 1.0, env_steps=after) == [False, True]
    assert ended_early(told(*config, "metric.mode=min"), 2.0, 1.0, env_steps=after) == [False] * 2


def test_asha_goes_on_with_one_of_reduction_factor_trials(told: Told) -> None:
    values = 1.0, 2.0, 3.0, 2.2
    for factor, is_ended in ((2, False), (4, True)):
        config = told("scheduler.kind=asha", f"scheduler.reduction_factor={factor}")
        assert ended_early(config, *values, env_steps=[50]) == [False, False, False, is_ended]


def test_the_median_rule_needs_min_samples_measured_trials(told: Told) -> None:
    for num, is_ended in ((2, True), (3, False)):
        config = told(*MEDIAN, f"scheduler.min_samples={num}")
        assert ended_early(config, 2.0, 2.0, 1.0, env_steps=[50]) == [False, False, is_ended]


def test_no_trial_of_equal_curves_is_ended_because_it_is_slow(told: Told) -> None:
    """Nor is it ended at the end of the budget, where its run ends by itself."""
    for kind in (ASHA, MEDIAN):
        for env_steps in ([100, 200, 300, 400, 500], [500]):
            found = ended_early(told(*kind), 1.0, 1.0, 1.0, 1.0, env_steps=env_steps)
            assert found == [False] * 4
