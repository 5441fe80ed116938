"""Ratings recover known strengths, and say where a single number misleads."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from muxrl.orchestrator.measure.ratings import Ratings, rate, wins_of

Floats = NDArray[np.float64]


def played(elo: Floats, num_units: int, num_games: int, rng: np.random.Generator) -> Floats:
    """Returns the wins in games of all pairs, drawn by their ratings alone."""
    chance = 1 / (1 + 10 ** ((elo - elo[:, None]) / 400))
    won = np.triu(rng.binomial(num_games, chance, (num_units, *chance.shape)), 1).astype(float)
    lost = np.triu(np.full(chance.shape, num_games), 1) - won
    return won + np.swapaxes(lost, 1, 2)


@pytest.mark.parametrize(("num_units", "num_games"), [(3, 100), (100, 3)])
def test_intervals_hold_strengths_that_are_known(num_units: int, num_games: int) -> None:
    """About 95 % of 25 sets of five players; few units are like seeds, many like episodes."""
    inside = []
    for seed in range(25):
        rng = np.random.default_rng(seed)
        elo = np.concatenate([[0.0], rng.uniform(0, 400, 4)])
        found = rate(played(elo, num_units, num_games, rng), 0).ratings
        assert found[0].mean == found[0].low == found[0].high == 0
        inside += [e.low <= r <= e.high for e, r in zip(found[1:], elo[1:], strict=True)]
    assert 0.89 <= np.mean(inside) < 1


def test_two_players_have_the_rating_of_their_odds() -> None:
    """With one added draw, it is 299.5 to 100.5 games: 400 log10(odds)."""
    found = rate(np.array([[[0.0, 299.0], [100.0, 0.0]]] * 2) / 2, anchor=1)
    assert found.ratings[0].mean == pytest.approx(400 * np.log10(299.5 / 100.5), abs=1e-3)
    assert found.num_triples == 0


def test_a_player_that_always_wins_has_a_finite_rating_and_one_unit_no_interval() -> None:
    ratings = rate(np.array([[[0.0, 50.0], [0.0, 0.0]]]), anchor=1).ratings
    assert ratings[0].mean == pytest.approx(400 * np.log10(50.5 / 0.5), abs=1e-3)
    assert np.isnan(ratings[0].low)


@pytest.mark.parametrize(("num_units", "is_known"), [(5, False), (6, True)])
def test_equal_units_give_an_interval_only_if_they_are_many(num_units: int, is_known: bool) -> None:
    """A player that wins every game of five pairs of seeds may still lose in the sixth pair."""
    rating, _ = rate(np.array([[[0.0, 50.0], [0.0, 0.0]]] * num_units), anchor=1).ratings
    assert (rating.low == rating.mean == rating.high) == is_known
    assert np.isnan(rating.low) != is_known


def rock_paper_scissors(noise: float, num_episodes: int = 100) -> Ratings:
    """Rock, paper, scissors and random play against each of them; a higher return wins."""
    rng = np.random.default_rng(1)
    payoff = np.array([[0, -1, 1, 0], [1, 0, -1, 0], [-1, 1, 0, 0], [0, 0, 0, 0]])
    wins = np.zeros((num_episodes, 4, 4))
    for met in range(3):
        returns = payoff[:, met, None] + noise * rng.normal(size=(4, num_episodes))
        wins += wins_of([[one] for one in returns])
    return rate(wins, 3)


def test_a_cycle_of_three_is_found_and_its_players_are_rated_alike() -> None:
    found = rock_paper_scissors(noise=0.3)
    assert found.cycles == ((0, 2, 1),)  # rock beats scissors beats paper beats rock
    assert found.num_triples == 4
    assert all(abs(e.mean) < 60 for e in found.ratings)
    assert rock_paper_scissors(noise=1e6).cycles == ()


def test_wins_are_counted_by_episode_and_an_episode_without_a_return_is_none() -> None:
    wins = wins_of(
        [
            [np.array([1.0, 2.0, np.nan]), np.array([0.0, 2.0, 1.0])],
            [np.array([0.0, 2.0, 1.0])],
        ]
    )
    assert wins[:, 0, 1].tolist() == [0.75, 0.5, 0.25]
    assert wins[:, 1, 0].tolist() == [0.25, 0.5, 0.25]
