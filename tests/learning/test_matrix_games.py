"""In games whose optimum no monotonic mixer can fit, a team keeps the choice of the best fit."""

import pytest
from tests.nights import at_night

from muxrl.experiments.studies.matrix_games.cases import TABLE

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(400)]


_CASES = [("climbing", "QMIX"), ("climbing", "IQL"), ("penalty_100", "QMIX")]


@pytest.mark.parametrize(("game", "algorithm"), at_night(_CASES, _CASES))
def test_a_team_holds_what_its_best_fit_chooses(game: str, algorithm: str) -> None:
    """By day, ``test_fits.py`` shows that the mixers fit these tables."""
    name = f"{game}: {algorithm}"
    outcome = TABLE.run(name)
    assert outcome.held == TABLE.cases[name].levels["best fit"], outcome.returns


@pytest.mark.night
def test_qplex_finds_the_optimum_and_keeps_it() -> None:
    """QPLEX needs more than half of its budget: 6,000 of 10,000 env steps.

    By day, ``test_fits.py`` shows that QPLEX's networks can hold the optimum.
    """
    outcome = TABLE.run("climbing: QPLEX")
    optimum = TABLE.cases["climbing: QPLEX"].levels["optimum"]
    assert list(outcome.returns.values())[-4:] == [optimum] * 4, outcome.returns
