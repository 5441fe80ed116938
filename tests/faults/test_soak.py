"""The soak runs for two minutes: faults again and again, and checks of what must hold."""

from __future__ import annotations

import pytest
from benchmarks.soak.__main__ import show
from benchmarks.soak.run import soak

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(900)]

OF_THE_CLOCK = {"pace", "latency"}
"""Checks that compare seconds. Here the tests that run at the same time change them, too.

The processor time of a step is compared all the same.
"""
PAUSE_S = 0.01
"""How long a step sleeps. Otherwise the run takes both processors from the other tests."""


@pytest.mark.night  # by day: each fault alone
def test_a_run_that_is_hurt_again_and_again_ends_well() -> None:
    outcome = soak(minutes=2.0, fault_every_s=10.0, seed=0, pause_s=PAUSE_S)
    show(outcome)  # pytest shows it if the test fails
    checks = {check.what: check.problems for check in outcome.checks}
    assert checks.keys() >= OF_THE_CLOCK
    assert [p for what, found in checks.items() if what not in OF_THE_CLOCK for p in found] == []
    assert len(outcome.faults) >= 3
    assert any(fault.is_loss for fault in outcome.faults)
