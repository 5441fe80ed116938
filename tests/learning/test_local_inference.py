"""Local inference learns what remote inference learns."""

from __future__ import annotations

from pathlib import Path

import pytest

from muxrl.client import PolicyClient
from muxrl.client.adapters import make_simulation
from muxrl.client.env_loop import EnvLoop
from muxrl.orchestrator.config import load_config, prepare
from muxrl.servers.server import PolicyServer

pytestmark = [pytest.mark.learning, pytest.mark.timeout(240)]

EPISODES = 2_500
CONFIG = """
simulation: {env: "muxrl.experiments.simulations.two_step_game:TwoStepGame"}
servers:
  ppo:
    algorithm: PPO
    agents: ["*"]
    settings: {train_batch_size_per_learner: 200, minibatch_size: 100, num_epochs: 4, lr: 0.003,
               entropy_coeff: 0.01}
"""


def test_it_learns_the_two_step_game(rllib: None, tmp_path: Path) -> None:
    """PPO shared by both finds the payoff of 8; at random it is 6.5 or so, the safe one is 7."""
    config = tmp_path / "two_step.yaml"
    config.write_text(CONFIG)
    experiment = prepare(load_config(config, ["seed=1"]), needs_stop=False)
    server = PolicyServer(experiment.servers["ppo"])
    returns = []
    with PolicyClient(server.start(), inference_mode="local") as client:
        env = experiment.config.simulation.env
        loop = EnvLoop([make_simulation(env, {})], client, seeds=iter(range(EPISODES)))
        loop.run(lambda episode: returns.append(sum(episode.returns.values())))
        assert client.num_mismatches == 0
    status = server.status()
    assert server.stop()
    assert (status.num_episodes, status.num_env_steps) == (EPISODES, 2 * EPISODES)
    assert (status.num_stale_steps, status.problem) == (0, "")
    assert sum(returns[-500:]) / 500 > 7.5
