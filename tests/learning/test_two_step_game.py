"""The proof that a mixer matters, through a real server: QMIX holds 8, VDN and IQL hold 7."""

import pytest

from muxrl.experiments.studies.two_step.cases import TABLE

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize(("algorithm", "joint_return"), [("QMIX", 8.0), ("VDN", 7.0), ("IQL", 7.0)])
def test_greedy_joint_return_under_uniform_exploration(algorithm: str, joint_return: float) -> None:
    outcome = TABLE.run(algorithm)
    assert outcome.held == joint_return, outcome.returns
