"""Every algorithm of RLlib's by its name, through a server: it learns where it can."""

import pytest

from muxrl.experiments.studies.each_algorithm.cases import (
    TABLE,
    WITHOUT_MEMORY,
    has_learned,
    is_as_expected,
)

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(600)]

# One on-policy and one with a replay: that the task cannot be done without memory is the same for
# all, and the study has the others.
_CONTROLS = ("PPO, MLP", "IQL, MLP")


@pytest.mark.parametrize("name", [n for n in TABLE.cases if n not in WITHOUT_MEMORY])
def test_the_smallest_task_that_shows_it(name: str) -> None:
    outcome = TABLE.run(name, until=lambda figures: has_learned(name, figures))
    assert is_as_expected(outcome), outcome


@pytest.mark.parametrize("name", _CONTROLS)
def test_without_a_memory_the_cue_is_not_recalled(name: str) -> None:
    outcome = TABLE.run(name)
    assert is_as_expected(outcome), outcome
