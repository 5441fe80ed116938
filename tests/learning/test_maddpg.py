"""MADDPG comes near the optimum of a continuous game that needs both members; see `pulling`."""

from __future__ import annotations

from typing import Any

import pytest
from tests.nights import at_night
from tests.servers.algorithms.joint_critics.pulling import best_pulls, mean_reward, plan_of, playing

pytestmark = [pytest.mark.learning, pytest.mark.timeout(240)]

SETTINGS = {
    "gamma": 0.0,  # every step is a game of its own
    "hidden_dim": 64,
    "batch_size_steps": 128,
    "num_steps_before_learning": 200,
    "updates_per_step": 0.5,
    "actor_lr": 0.002,
    "critic_lr": 0.003,
    "exploration_noise": [[0, 0.5], [1_000, 0.2]],
}
AS_IN_2017 = {"twin_critics": False, "policy_delay": 1, "target_noise": 0.0}


@pytest.mark.parametrize(
    "switches", at_night([{}, AS_IN_2017], [AS_IN_2017]), ids=["MATD3", "MADDPG"]
)
def test_two_members_together_pull_as_far_as_is_best(switches: dict[str, Any]) -> None:
    """The best return is -0.027; doing nothing returns -0.37, uniformly random pulls -3.70.

    If each pulled as if it were alone, both would pull too far, which returns -0.25. Equal shares
    return -0.041 at best: which member pulls more is not tested, and was not found in 2,500 steps.
    """
    with playing(plan_of(algorithm="MADDPG", settings={**SETTINGS, **switches})) as game:
        held = []
        for num_steps in (1_500, 250, 250):
            game.play_steps(num_steps)
            held.append(mean_reward(game))
        pulls = game.pulls(1.0)
    assert min(held) > -0.08, held
    assert sum(pulls.values()) == pytest.approx(sum(best_pulls(1.0).values()), abs=0.25)
