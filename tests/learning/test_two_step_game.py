"""The proof that a mixer matters, through a real server: QMIX holds 8, where a sum holds 7."""

import pytest

from muxrl.experiments.studies.two_step.cases import TABLE

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.night  # by day: test_matrix_games.py; qmix/test_fits.py
@pytest.mark.parametrize(("algorithm", "held"), [("QMIX", 8.0), ("VDN", 7.0)])
def test_greedy_joint_return_under_uniform_exploration(algorithm: str, held: float) -> None:
    outcome = TABLE.run(algorithm)
    assert outcome.held == held, outcome.returns
