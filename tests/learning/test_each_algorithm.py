"""Every algorithm, by its name, learns through a server in the tasks that it can learn."""

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
"""Cases of the study only: with a memory, A2C makes PPO's update, and APPO IMPALA's."""


_AT_NIGHT = [
    "IMPALA, LSTM", "MAPPO, LSTM", "IMPALA, continuous", "APPO, continuous",
    "DQN", "SAC, discrete", "SAC, continuous", "APPO", "PPO, continuous",
]  # fmt: skip
"""By day DQN learns these cases with a prioritised replay, A2C turns the dials, PPO and QMIX
remember, and IMPALA learns the cues; in test_kinds_of_actions.py DQN learns doors, and SAC a pair
of actions."""


@pytest.mark.parametrize(
    "name", at_night((n for n in TABLE.cases if n not in _ELSEWHERE), _AT_NIGHT)
)
def test_each_algorithm_learns_the_smallest_task_that_shows_it(name: str) -> None:
    outcome = TABLE.run(name, until=lambda figures: has_learned(name, figures))
    assert is_as_expected(outcome), outcome


@pytest.mark.night  # it tests the task
def test_a_policy_without_memory_does_not_learn_to_recall_the_cue() -> None:
    """The algorithm of the policy makes no difference to this."""
    outcome = TABLE.run("PPO, MLP")
    assert is_as_expected(outcome), outcome
