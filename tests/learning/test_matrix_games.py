"""Games whose optimum no monotonic mixer can fit: a team holds what the best fit chooses."""

import pytest

from muxrl.experiments.studies.matrix_games.cases import TABLE

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize(
    ("game", "algorithm"), [("climbing", "QMIX"), ("climbing", "IQL"), ("penalty_100", "QMIX")]
)
def test_a_team_holds_what_its_best_fit_chooses(game: str, algorithm: str) -> None:
    name = f"{game}: {algorithm}"
    outcome = TABLE.run(name)
    assert outcome.held == TABLE.cases[name].levels["best fit"], outcome.returns


def test_qplex_finds_the_optimum_and_keeps_it() -> None:
    """It needs more than half of its budget: 6,000 of 10,000 env steps."""
    outcome = TABLE.run("climbing: QPLEX")
    optimum = TABLE.cases["climbing: QPLEX"].levels["optimum"]
    assert list(outcome.returns.values())[-4:] == [optimum] * 4, outcome.returns
