"""Servers of different algorithms learn at the same time: teams and agents, on- and off-policy.

The study of combinations runs every pair in each position. Here QMIX, PPO and A2C each run once
with each other, and DQN, SAC and a script once more; some of them at night. `test_each_algorithm`
has each alone, `test_two_step_game` QMIX.
"""

import pytest
from tests.nights import at_night

from muxrl.experiments.simulations.cue_game import random_return
from muxrl.experiments.studies.combinations.cases import TABLE
from muxrl.experiments.studies.outcomes import Figures

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(240)]

_PAIRS = [
    "QMIX+PPO", "A2C+QMIX", "PPO+A2C", "QMIX+QMIX", "DQN+SAC", "SAC+QMIX", "SCRIPTED+DQN",
]  # fmt: skip
_BY_DAY = ["A2C+QMIX"]


def _has_learned(figures: Figures) -> bool:
    replaced = [value for who, value in figures.items() if who.endswith(" random")]
    learned = figures["return"]
    return bool(replaced) and learned > 2 * random_return() and learned > max(replaced) + 1.0


@pytest.mark.parametrize("name", at_night(_PAIRS, [p for p in _PAIRS if p not in _BY_DAY]))
def test_each_server_is_worth_more_than_random_agents_in_its_place(name: str) -> None:
    outcome = TABLE.run(name, until=_has_learned)
    assert _has_learned(outcome.final), outcome
