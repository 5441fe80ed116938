"""The study's predictions for the matrix games are what theory says."""

from __future__ import annotations

import numpy as np
import pytest

from muxrl.experiments.simulations.matrix_game import Game, oracle_return, payoffs_of
from muxrl.experiments.studies.matrix_games.cases import GAMES, additive_fit, monotonic_fits


@pytest.mark.parametrize(("game", "k", "best_fit"), GAMES.values(), ids=GAMES)
def test_no_best_fit_chooses_the_optimum(game: Game, k: float, best_fit: float) -> None:
    payoffs = payoffs_of(game, k)
    monotonic = monotonic_fits(payoffs)
    assert additive_fit(payoffs).payoff == monotonic[0].payoff == best_fit
    assert best_fit < oracle_return(game, k)
    # A sum is monotonic, so it cannot fit better.
    assert monotonic[0].squared_error <= additive_fit(payoffs).squared_error
    best_with_optimum = min(
        fit.squared_error for fit in monotonic if fit.payoff == oracle_return(game, k)
    )
    assert best_with_optimum > monotonic[0].squared_error


def test_a_monotonic_table_is_fitted_exactly() -> None:
    payoffs = np.array([[0.0, 1.0], [1.0, 8.0]])  # state 2B of the two-step game
    best = monotonic_fits(payoffs)[0]
    assert (best.actions, best.payoff) == ((1, 1), 8.0)
    assert best.squared_error == pytest.approx(0.0, abs=1e-12)
    # Table 1a of the QMIX paper: -1.5, 2.5, 2.5, 6.5.
    assert additive_fit(payoffs).squared_error == pytest.approx(4 * 1.5**2)


def test_isotonic_regressions_are_as_computed_by_hand() -> None:
    # Two neighbours that fall, 3 then 1, are both fitted by their mean, in either order.
    fits = monotonic_fits(np.array([[0.0, 3.0], [1.0, 1.0]]))
    by_action = {fit.actions: fit.squared_error for fit in fits}
    assert by_action[(0, 1)] == pytest.approx(0.5)  # rows 1, 0: the 1 above 0 becomes 0.5 twice
    assert by_action[(1, 1)] == pytest.approx(2.0)  # columns 0, 1: the 3 before 1 becomes 2 twice
