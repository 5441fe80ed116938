"""Servers of different algorithms learn at one time: teams and agents, on- and off-policy.

The study of combinations runs every pair; here those of QMIX, PPO and A2C, and each other algorithm
once beside each kind. Alone each learns in `test_each_algorithm`, QMIX in `test_two_step_game`.
"""

import pytest

from muxrl.experiments.simulations.cue_game import random_return
from muxrl.experiments.studies.combinations.cases import TABLE

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(240)]

_WITH_REPLAY_OF_STEPS = ["DQN+SAC", "PPO+DQN", "SAC+QMIX", "SCRIPTED+DQN"]
_OTHERS = [
    name for name in TABLE.cases if "+" in name and set(name.split("+")) <= {"QMIX", "PPO", "A2C"}
]


@pytest.mark.parametrize("name", [*_OTHERS, *_WITH_REPLAY_OF_STEPS])
def test_each_server_is_worth_more_than_random_agents_in_its_place(name: str) -> None:
    outcome = TABLE.run(name)
    learned = outcome.final["return"]
    assert learned > 2 * random_return(), outcome
    replaced = {who: value for who, value in outcome.final.items() if who.endswith(" random")}
    assert replaced
    for who, value in replaced.items():
        assert learned > value + 1.0, (who, outcome)
