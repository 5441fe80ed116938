"""The proof that a mixer matters, through a real server: QMIX holds 8, VDN and IQL hold 7."""

import pytest

from muxrl.experiments.two_step import run

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize(("algorithm", "joint_return"), [("QMIX", 8.0), ("VDN", 7.0), ("IQL", 7.0)])
def test_greedy_joint_return_under_uniform_exploration(algorithm: str, joint_return: float) -> None:
    outcome = run(algorithm, seed=0)
    assert outcome.held == joint_return, outcome.returns
