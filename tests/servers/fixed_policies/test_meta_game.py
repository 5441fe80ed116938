"""Nash weights and alpha-rank of games that can be solved by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from muxrl.servers.fixed_policies import meta_game
from muxrl.servers.fixed_policies.meta_game import ALPHA_RANK, NASH, MetaGame

ROCK_PAPER_SCISSORS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])


def of_zero_sum(first: Any, **how: Any) -> MetaGame:
    payoffs = np.asarray(first, float)
    return MetaGame(np.array([payoffs, -payoffs]), **how)


@pytest.mark.parametrize("kind", [NASH, ALPHA_RANK])
@pytest.mark.parametrize("is_symmetric", [True, False])
def test_rock_paper_and_scissors_weigh_a_third_each(kind: str, is_symmetric: bool) -> None:
    found = of_zero_sum(ROCK_PAPER_SCISSORS, is_symmetric=is_symmetric).weights(kind)
    for weights in found:
        np.testing.assert_allclose(weights, [1 / 3] * 3, atol=1e-6)


@pytest.mark.parametrize(
    ("payoffs", "first", "second"),
    [
        ([[2, -1], [-1, 1]], [0.4, 0.6], [0.4, 0.6]),
        ([[3, 0], [1, 2]], [0.25, 0.75], [0.5, 0.5]),
        ([[5, 4], [3, 2]], [1, 0], [0, 1]),
        ([[0, 0], [0, 0]], [0.5, 0.5], [0.5, 0.5]),
        ([[7]], [1], [1]),
        ([[1, 2, 3]], [1], [1, 0, 0]),
    ],
)
def test_nash_weights_of_two_roles(payoffs: Any, first: Any, second: Any) -> None:
    found = of_zero_sum(payoffs).weights(NASH)
    np.testing.assert_allclose(found[0], first, atol=1e-4)
    np.testing.assert_allclose(found[1], second, atol=1e-4)


def test_equal_policies_weigh_the_same() -> None:
    twice = [0, 0, 1, 2]
    found = of_zero_sum(ROCK_PAPER_SCISSORS[np.ix_(twice, twice)], is_symmetric=True).weights(NASH)
    np.testing.assert_allclose(found[0], [1 / 6, 1 / 6, 1 / 3, 1 / 3], atol=1e-4)


def test_a_role_that_is_paid_more_does_not_change_the_weights() -> None:
    """A role that is paid 1 more, whoever plays it, leaves equally good policies at equal
    weights."""
    payoffs = np.array([ROCK_PAPER_SCISSORS + 1, -ROCK_PAPER_SCISSORS - 1])
    found = MetaGame(payoffs, is_symmetric=True).weights(NASH)
    np.testing.assert_allclose(found[0], [1 / 3] * 3, atol=1e-6)


def test_a_dominated_policy_weighs_nothing() -> None:
    """Alpha-rank weighs a dominated policy by its noise: once in a thousand times it replaces the
    better one."""
    game = of_zero_sum([[0, 1], [-1, 0]], is_symmetric=True)
    np.testing.assert_array_equal(game.weights(NASH)[0], [1, 0])
    np.testing.assert_allclose(game.weights(ALPHA_RANK)[0], [0.999, 0.001])


def test_a_game_of_general_sum_has_alpha_rank_and_no_nash_weights() -> None:
    """In the prisoners' dilemma the second policy, to defect, is better whatever the other player
    does."""
    first = np.array([[3.0, 0.0], [5.0, 1.0]])
    for is_symmetric in (True, False):
        game = MetaGame(np.array([first, first.T]), is_symmetric=is_symmetric)
        found = game.weights(ALPHA_RANK)
        assert found[0][1] == pytest.approx(1, abs=0.003)
        assert found[1][1] == pytest.approx(1, abs=0.003)
        assert "have no constant sum, which nash needs" in game.weights(NASH)


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (3, 1)])
def test_alpha_rank_of_a_single_policy(shape: tuple[int, int]) -> None:
    found = of_zero_sum(np.zeros(shape)).weights(ALPHA_RANK)
    np.testing.assert_allclose(found[0], np.full(shape[0], 1 / shape[0]))
    np.testing.assert_allclose(found[1], np.full(shape[1], 1 / shape[1]))


def test_too_many_pairs_and_a_missing_package_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    large = of_zero_sum(np.zeros((40, 40)))
    assert large.weights(ALPHA_RANK) == (
        "more than 1,000 pairs would take too long; use fewer (in a league: opponents.last)"
    )
    monkeypatch.setattr(meta_game, "find_spec", lambda name: None)
    assert "comes with: pip install 'muxrl[open_spiel]'" in large.weights(ALPHA_RANK)
