"""MASAC finds the optimum of a continuous game that needs both members; see `pulling`."""

from __future__ import annotations

import numpy as np
import pytest
from tests.servers.algorithms.joint_critics.pulling import (
    SEEN,
    best_pulls,
    mean_reward,
    plan_of,
    playing,
    rewards_of,
)

pytestmark = [pytest.mark.learning, pytest.mark.timeout(240)]

SETTINGS = {
    "gamma": 0.0,  # every step is a game of its own
    "hidden_dim": 64,
    "batch_size_steps": 128,
    "num_steps_before_learning": 200,
    "updates_per_step": 0.5,
    "actor_lr": 0.002,
    "critic_lr": 0.003,
    "alpha_lr": 0.003,
    "initial_alpha": 0.1,
}


def test_two_members_share_the_work_by_what_it_costs_each() -> None:
    """The best return is -0.027; doing nothing returns -0.37. Alone, each would pull for both."""
    best = float(np.mean([sum(rewards_of(c, best_pulls(c)).values()) for c in SEEN]))
    assert best == pytest.approx(-float(np.mean(SEEN**2)) / 13.5)
    with playing(plan_of(settings=SETTINGS)) as game:
        held = []
        for num_steps in (1_500, 500, 500):
            game.play_steps(num_steps)
            held.append(mean_reward(game))
        pulls = game.pulls(1.0)
    assert min(held) > -0.06, held
    assert pulls == pytest.approx(best_pulls(1.0), abs=0.2)
    assert pulls["a"] > 2 * pulls["b"]
