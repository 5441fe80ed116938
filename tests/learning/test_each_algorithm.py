"""Every algorithm by its name, through a server: it learns where it can."""

import pytest
from tests.nights import at_night

from muxrl.experiments.studies.each_algorithm.cases import (
    TABLE,
    WITHOUT_MEMORY,
    has_learned,
    is_as_expected,
)

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(600)]

_ELSEWHERE = {*WITHOUT_MEMORY, "A2C, LSTM", "APPO, LSTM"}
"""A2C is PPO's update, and APPO IMPALA's, as far as memory goes; the study has these, too."""


_AT_NIGHT = [
    "IMPALA, LSTM", "MAPPO, LSTM", "IMPALA, continuous", "APPO, continuous",
    "DQN", "SAC, discrete", "SAC, continuous", "APPO", "PPO, continuous",
]  # fmt: skip
"""By day DQN learns them by priority, A2C turns the dials, PPO and QMIX remember, IMPALA learns the
cues; DQN learns doors, and SAC a pair of actions (test_kinds_of_actions.py)."""


@pytest.mark.parametrize(
    "name", at_night((n for n in TABLE.cases if n not in _ELSEWHERE), _AT_NIGHT)
)
def test_the_smallest_task_that_shows_it(name: str) -> None:
    outcome = TABLE.run(name, until=lambda figures: has_learned(name, figures))
    assert is_as_expected(outcome), outcome


@pytest.mark.night  # it says something of the task
def test_without_a_memory_the_cue_is_not_recalled() -> None:
    """Whose the policy is makes no difference to that."""
    outcome = TABLE.run("PPO, MLP")
    assert is_as_expected(outcome), outcome
