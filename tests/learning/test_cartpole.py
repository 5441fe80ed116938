"""One agent, one server: the path from network to learner loses nothing on the way."""

import pytest

from muxrl.experiments.cartpole import through_a_server

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(600)]


def test_ppo_balances_the_pole_through_a_server() -> None:
    outcome = through_a_server("PPO", seed=0)
    assert outcome.env_steps is not None, outcome
    assert outcome.greedy_return is not None
    assert outcome.greedy_return > 400
