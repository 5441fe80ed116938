"""Games whose optimum no mixer can fit: a team holds what the best fit chooses."""

import pytest

from muxrl.experiments.matrix_games import ALGORITHMS, TASKS, Task, run

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("task", TASKS[:2], ids=lambda task: task.name)
def test_a_team_holds_what_its_best_fit_chooses(task: Task, algorithm: str) -> None:
    outcome = run(task, algorithm, seed=0)
    assert outcome.held == task.predicted, outcome.returns
