"""The sweeps that come with muxrl can run, and are what their first lines say."""

import pytest

from muxrl.orchestrator.config import packaged_configs
from muxrl.orchestrator.sweeps.load import load_sweep
from muxrl.orchestrator.sweeps.plan import make_plan


@pytest.mark.parametrize(("name", "num_trials"), [("chase", 18), ("chase_lr", 8)])
def test_a_packaged_sweep_has_its_trials(name, num_trials):
    plan = make_plan(load_sweep(name))
    assert len(plan.trials) == num_trials
    assert {spec.seed for spec in plan.trials} == set(plan.config.seeds or [0])


def test_they_are_all_here():
    assert set(packaged_configs("sweeps")) == {
        "chase", "chase_lr", "tag", "benchmark/continuous", "benchmark/discrete"
    }  # fmt: skip
