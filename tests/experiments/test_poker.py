"""Poker: what is measured exactly, of policies that `muxrl.load_policy` loads, and learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyspiel
import pytest
import torch
from tests.servers.export.untrained import plan_of, save

from muxrl.client.adapters import make_simulation
from muxrl.experiments.studies.poker.cases import TABLE
from muxrl.orchestrator.load_policy import load_policy


@pytest.mark.parametrize(("game", "uniform"), [("kuhn_poker", 11 / 24), ("leduc_poker", 2.3736)])
def test_uniform_policies_are_as_exploitable_as_open_spiel_says(
    tmp_path: Path, game: str, uniform: float
) -> None:
    from muxrl.experiments.studies.poker.exact import ExactGame, Mean

    simulation = make_simulation(f"open_spiel:{game}", {})
    sees, acts = (
        spaces["player_0"] for spaces in (simulation.observation_spaces, simulation.action_spaces)
    )
    path = save(plan_of("PPO", sees, acts), tmp_path, torch.zeros_like)
    exact, policies = ExactGame(game), load_policy(path)
    table = exact.table([policies["a"], policies["b"]])
    assert exact.exploitability(table) == pytest.approx(uniform, abs=1e-4)
    known = pyspiel.load_game(game)
    assert exact.exploitability(table) == pytest.approx(
        pyspiel.exploitability(known, pyspiel.UniformRandomPolicy(known))
    )
    mean = Mean(exact)
    for _ in range(3):
        mean.add(table)
    np.testing.assert_allclose(mean.table, table)


def test_a_mean_of_policies_is_drawn_once_for_a_game() -> None:
    """What it earns is the mean of what they earn, against anybody."""
    from open_spiel.python.algorithms.expected_game_score import policy_value
    from open_spiel.python.policy import TabularPolicy

    from muxrl.experiments.studies.poker.exact import ExactGame, Mean

    exact, game = ExactGame("kuhn_poker"), pyspiel.load_game("kuhn_poker")
    tables = np.random.default_rng(0).dirichlet([0.5, 0.5], size=(3, 12))
    mean = Mean(exact)
    mean.add(tables[0])
    mean.add(tables[1])

    def value(table: np.ndarray) -> float:
        policies = TabularPolicy(game), TabularPolicy(game)
        for policy, its in zip(policies, (table, tables[2]), strict=True):
            policy.action_probability_array[:] = its
        return policy_value(game.new_initial_state(), policies)[0]

    assert value(mean.table) == pytest.approx((value(tables[0]) + value(tables[1])) / 2)


@pytest.mark.learning
@pytest.mark.timeout(240)
def test_ppo_becomes_less_exploitable_in_kuhn_poker(rllib: None) -> None:
    final = TABLE.run("Kuhn: PPO against PPO", env_steps=10_000).final
    assert final["newest"] > -0.38  # uniform: -0.458
