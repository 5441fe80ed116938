"""Servers of different algorithms learn at one time: teams and agents, on- and off-policy.

Every pair is run by `experiments.combinations`; here those of QMIX, PPO and A2C, and each other
algorithm once beside each kind.
"""

import pytest

from muxrl.experiments.combinations import combinations, run
from muxrl.experiments.simulations.cue_game import random_return

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(240)]


WITH_REPLAY_OF_STEPS = [
    ("DQN",),
    ("SAC",),
    ("DQN", "SAC"),
    ("PPO", "DQN"),
    ("SAC", "QMIX"),
    ("SCRIPTED", "DQN"),
]


@pytest.mark.parametrize(
    "algorithms", [*combinations(("QMIX", "PPO", "A2C")), *WITH_REPLAY_OF_STEPS], ids="-".join
)
def test_each_server_is_worth_more_than_random_agents_in_its_place(
    algorithms: tuple[str, ...],
) -> None:
    outcome = run(algorithms, env_steps=4_000)
    assert outcome.learned > 2 * random_return(), outcome
    for server_id, replaced in outcome.replaced.items():
        assert outcome.learned > replaced + 1.0, (server_id, outcome)
