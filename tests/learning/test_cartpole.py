"""One agent, one server: the path from network to learner loses nothing on the way."""

import pytest

from muxrl.experiments.studies.cartpole.cases import TABLE

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.night  # by day: test_each_algorithm.py, PPO; test_rows.py
def test_ppo_balances_the_pole_through_a_server() -> None:
    case = TABLE.cases["PPO through a server"]
    outcome = TABLE.run("PPO through a server")
    assert max(outcome.returns) < case.env_steps, outcome.final  # it ended at the threshold
    assert outcome.final["greedy"] > 400
