"""Continuous actions and memory: the games' bounds are what their modules say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.experiments.playing import mean_return

from muxrl.experiments.simulations import dials, recall_game
from muxrl.experiments.simulations.dials import Dials
from muxrl.experiments.simulations.recall_game import RecallGame


def test_bounds_of_dials() -> None:
    env = Dials(num_agents=2)
    box = env.action_space("agent_0")
    box.seed(0)
    assert mean_return(env, lambda *_: box.sample(), 300) == pytest.approx(
        dials.random_return(), abs=0.1
    )
    middle = np.full(2, 6.0, np.float32)
    assert mean_return(env, lambda *_: middle, 300) == pytest.approx(dials.still_return(), abs=0.1)
    assert mean_return(env, lambda _, wish: 2.0 + 8.0 * wish, 5) == pytest.approx(
        dials.oracle_return(), abs=1e-4
    )


def test_a_dial_does_not_go_beyond_its_scale() -> None:
    env = Dials()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"agent_0 sets its dials to .* beyond Box"):
        env.step({"agent_0": np.array([2.0, 10.1], np.float32)})


def test_bounds_of_recall() -> None:
    env = RecallGame(num_agents=2)
    assert mean_return(env, lambda *_: 1, 500) == pytest.approx(
        recall_game.memoryless_return(), abs=0.05
    )
    cue_of: dict[str, int] = {}

    def remember(agent: str, now: Any) -> int:
        if now[:4].any():
            cue_of[agent] = int(now[:4].argmax())
        return cue_of[agent]

    remembered = mean_return(env, remember, 20)
    assert remembered == recall_game.oracle_return()


def test_at_the_question_all_episodes_look_alike() -> None:
    env = RecallGame()
    seen = []
    for seed in range(20):
        observation = env.reset(seed=seed)[0]["agent_0"]
        while env.agents:
            last = observation
            observation = env.step({"agent_0": 0})[0]["agent_0"]
        seen.append(last)
    assert all((observation == [0, 0, 0, 0, 1]).all() for observation in seen)
