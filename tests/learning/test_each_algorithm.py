"""Every algorithm of RLlib's by its name, through a server: it learns where it can."""

import pytest

from muxrl.experiments.each_algorithm import CASES, run

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", CASES)
def test_the_smallest_task_that_shows_it(name: str) -> None:
    outcome = run(name)
    assert outcome.is_as_expected, outcome
