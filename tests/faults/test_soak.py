"""The soak for five minutes: faults again and again, and what has to hold at the end."""

from __future__ import annotations

import pytest
from benchmarks.soak.__main__ import show
from benchmarks.soak.run import soak

pytestmark = [pytest.mark.faults, pytest.mark.ray, pytest.mark.timeout(900)]


def test_a_run_that_is_hurt_again_and_again_ends_well() -> None:
    outcome = soak(minutes=5.0, fault_every_s=20.0, seed=0)
    show(outcome)  # pytest shows it if the test fails
    assert outcome.problems == []
    assert len(outcome.faults) >= 4
    assert any(fault.is_loss for fault in outcome.faults)
