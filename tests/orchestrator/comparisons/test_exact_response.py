"""What is measured exactly in poker, of policies that `muxrl.load_policy` loads."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyspiel
import pytest
import torch
from tests.servers.export.untrained import plan_of, save

from muxrl.client.adapters import make_simulation
from muxrl.orchestrator.comparisons.exact_response import exact_response
from muxrl.orchestrator.config import load_config
from muxrl.orchestrator.load_policy import load_policy
from muxrl.orchestrator.measure.exact_games import ExactGame, Mean
from muxrl.orchestrator.storage.checkpoints import Manifest


@pytest.mark.parametrize(("game", "uniform"), [("kuhn_poker", 11 / 24), ("leduc_poker", 2.3736)])
def test_uniform_policies_are_as_exploitable_as_open_spiel_says(
    tmp_path: Path, game: str, uniform: float
) -> None:
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


def of_run(path: Path, opponent: str, game: str = "kuhn_poker", **simulation: Any) -> Any:
    """Returns a run whose policies are all zeros: "a", of its checkpoint, against "b"."""
    made = make_simulation("open_spiel:kuhn_poker", {})
    spaces = made.observation_spaces["player_0"], made.action_spaces["player_0"]
    for server_id in ("main", "rivals"):
        save(plan_of("PPO", *spaces), path / "checkpoints" / "10" / server_id, torch.zeros_like)
    Manifest(10, 0.0, "", None, {}, {}, {}, {}).write(path / "checkpoints" / "10")
    config = load_config(
        {
            "simulation": {"env": f"open_spiel:{game}", **simulation},
            "servers": {"main": {"algorithm": "PPO"}, "rivals": {"algorithm": opponent}},
        }
    )
    return SimpleNamespace(path=path, config=config, server_of={"a": "main", "b": "rivals"})


@pytest.mark.parametrize("opponent", ["PPO", "RANDOM"])
def test_a_best_response_is_exact_in_a_small_game(tmp_path: Path, opponent: str) -> None:
    run = of_run(tmp_path, opponent)
    game = ExactGame("kuhn_poker")
    found = exact_response(run, "b", "10", should_explore=True)
    assert found is not None
    assert found.gain == pytest.approx(game.gains(game.table([None, None]))[1])
    assert found.own == pytest.approx(-1 / 8)
    run.config.simulation.parameters = {"seat": {"sides": ["a", "b"]}}
    both = exact_response(run, "b", "10", should_explore=True)
    assert both is not None
    assert (both.own, both.gain) == pytest.approx((0, 11 / 24))


def test_greedy_policies_take_their_first_likeliest_action(tmp_path: Path) -> None:
    """Who always passes loses the ante to who always bets."""
    found = exact_response(of_run(tmp_path, "PPO"), "a", "10", should_explore=False)
    assert found is not None
    assert (found.best_response, found.own) == (1, 0)


def test_a_best_response_is_known_where_the_run_s_own_policy_is_not(tmp_path: Path) -> None:
    run = of_run(tmp_path, "SCRIPTED")
    found = exact_response(run, "b", "10", should_explore=True)
    assert found is not None
    assert found.best_response > 0
    assert found.own is found.gain is None
    assert exact_response(run, "a", "10", should_explore=True) is None


@pytest.mark.parametrize("game", ["matrix_rps", "tic_tac_toe"])
def test_of_other_games_nothing_is_said(tmp_path: Path, game: str) -> None:
    run = of_run(tmp_path, "PPO", game)
    assert exact_response(run, "a", "10", should_explore=True) is None
    run.config.simulation.env = "m:e"
    assert exact_response(run, "a", "10", should_explore=True) is None
