"""The two-step game of Rashid et al. 2018, appendix B: what the mixers make of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.servers.algorithms.qmix.pieces import (
    episode,
    make,
    observed,
    rows_of,
    spec_of,
    tensors_of,
)

from muxrl.servers.algorithms.qmix.trainer import QMIX
from muxrl.servers.episodes.trajectories import Trajectory, stack

PAYOFF_2B = np.array([[0.0, 1.0], [1.0, 8.0]])

pytestmark = [pytest.mark.learning, pytest.mark.night, pytest.mark.timeout(300)]


def play(trainer: QMIX, rng: np.random.Generator | None) -> Trajectory:
    """Plays an episode with an agent without memory: of generator, or greedily.

    Agent 0 picks the second game; in 2A everything pays 7, in 2B see `PAYOFF_2B`.
    """
    at, last = 0, (-1.0, -1.0)
    seen, actions = [], []
    for _ in range(2):
        seen.append(observed(*[np.eye(3)[at]] * 2, masks=np.ones((2, 2)), last=last))
        rows = rows_of(stack(seen[-1:]), should_explore=rng is not None)
        if rng is not None:
            rows.rng = rng
        actions.append(trainer.act(rows).actions[0])
        last = tuple(actions[-1].astype(float))
        at = 1 + int(actions[0][0])
    pays = 7.0 if at == 1 else PAYOFF_2B[tuple(actions[1])]
    seen.append(observed(*[np.eye(3)[at]] * 2, masks=np.ones((2, 2)), last=last))
    return episode(seen, actions, [0.0, pays])


def team_values(trainer: QMIX) -> dict[str, np.ndarray]:
    """Returns Q_tot of every joint action in states 2A and 2B."""
    net, tables = trainer.net, {}
    for name, picked in (("2A", 0.0), ("2B", 1.0)):
        here = observed(*[np.eye(3)[1 + int(picked)]] * 2, masks=np.ones((2, 2)), last=(picked, 0))
        obs = tensors_of(stack([here]))
        with torch.no_grad():
            values, _ = net.agent.step(obs, None)
            tables[name] = np.zeros((2, 2))
            for a, b in np.ndindex(2, 2):
                chosen = torch.stack([values[:, 0, a], values[:, 1, b]], -1)
                tables[name][a, b] = net.mixer(chosen, obs["state"], obs["alive"]).item()
    return tables


def learned(num_episodes: int, **settings: Any) -> tuple[set[float], dict[str, np.ndarray]]:
    """Trains under uniform exploration; returns the greedy returns that ten measurements saw, and
    the medians of `team_values`. Untrained networks may reach the best by luck, so it must be held;
    a value may be off for some updates, since RMSprop's steps grow while gradients are small."""
    trainer = make(spec_of(2, 3, 2), agent="mlp", epsilon=1.0, updates_per_episode=0.5, **settings)
    rng, held, values = np.random.default_rng(0), set(), []
    for number in range(num_episodes + 200):
        trainer.learn([play(trainer, rng)])
        if number >= num_episodes and number % 20 == 19:
            held.add(float(play(trainer, None).rewards.sum()))
            values.append(team_values(trainer))
    return held, {name: np.median([v[name] for v in values], 0) for name in values[0]}


def test_qmix_learns_the_two_step_game() -> None:
    """Rashid et al. 2018, table 1b. By priority; drawn uniformly it holds 8 in
    ``tests/learning/test_two_step_game.py``."""
    held, values = learned(2_000, gamma=0.99, prioritized_replay_alpha=0.6)
    assert held == {8.0}
    np.testing.assert_allclose(values["2A"], 7.0, atol=0.5)
    np.testing.assert_allclose(values["2B"], PAYOFF_2B, atol=0.5)


def test_vdn_prefers_the_safe_seven_under_uniform_exploration() -> None:
    """A sum cannot represent 0, 1, 1, 8: its best fit is -1.5, 2.5, 2.5, 6.5 (table 1a there). By
    day: ``tests/learning/test_two_step_game.py``, QMIX."""
    held, values = learned(1_200, gamma=0.99, mixer="vdn")
    assert held == {7.0}
    np.testing.assert_allclose(values["2A"], 7.0, atol=0.5)
    np.testing.assert_allclose(values["2B"], [[-1.5, 2.5], [2.5, 6.5]], atol=0.75)
