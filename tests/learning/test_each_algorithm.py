"""Every algorithm of RLlib's by its name, through a server: it learns where it can."""

import pytest

from muxrl.experiments.studies.each_algorithm.cases import TABLE, is_as_expected

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", TABLE.cases)
def test_the_smallest_task_that_shows_it(name: str) -> None:
    outcome = TABLE.run(name)
    assert is_as_expected(outcome), outcome
