"""The proof that a mixer matters, through a real server: QMIX holds 8, where a sum holds 7.

VDN's 7 is held by ``tests/servers/algorithms/qmix/test_two_step.py``, with its values.
"""

import pytest

from muxrl.experiments.studies.two_step.cases import TABLE

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.night  # by day: test_matrix_games.py; qmix/test_fits.py
def test_greedy_joint_return_under_uniform_exploration() -> None:
    outcome = TABLE.run("QMIX")
    assert outcome.held == 8.0, outcome.returns
