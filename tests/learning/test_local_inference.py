"""Local inference learns what remote inference learns."""

from __future__ import annotations

from pathlib import Path

import pytest

from muxrl.client import PolicyClient
from muxrl.client.adapters import make_simulation
from muxrl.client.env_loop import EnvLoop
from muxrl.experiments.simulations.two_step_game import random_return
from muxrl.orchestrator.config import load_config, prepare
from muxrl.protocol.messages import Status
from muxrl.servers.server import PolicyServer

pytestmark = [pytest.mark.learning, pytest.mark.timeout(240)]

GAME = 'simulation: {env: "muxrl.experiments.simulations.two_step_game:TwoStepGame"}'
PPO = """
servers:
  ppo:
    algorithm: PPO
    agents: ["*"]
    settings: {train_batch_size_per_learner: 200, minibatch_size: 100, num_epochs: 4, lr: 0.003,
               entropy_coeff: 0.01}
"""
QMIX = """
servers:
  qmix:
    algorithm: QMIX
    agents: ["*"]
    groups: {both: ["*"]}
    settings: {gamma: 0.99, optimizer_name: adam, lr: 0.002, epsilon: 1.0, hidden_dim: 32,
               updates_per_episode: 0.5, target_update_freq: 50}
"""


def learned(servers: str, num_episodes: int, folder: Path) -> tuple[Status, list[float], float]:
    """Plays with local inference; returns the server's status, the returns, and a greedy one."""
    path = folder / "two_step.yaml"
    path.write_text(GAME + servers)
    experiment = prepare(load_config(path, ["seed=1"]), needs_stop=False)
    (plan,) = experiment.servers.values()
    server = PolicyServer(plan)
    env = experiment.config.simulation.env
    returns: list[float] = []
    with PolicyClient(server.start(), inference_mode="local") as client:
        loop = EnvLoop([make_simulation(env, {})], client, seeds=iter(range(num_episodes)))
        loop.run(lambda episode: returns.append(sum(episode.returns.values())))
        assert client.num_mismatches == 0
        server.finish_training(60.0)
        client.update_policy_weights()
        greedy = EnvLoop([make_simulation(env, {})], client, mode="eval", seeds=iter([0]))
        greedy.run(lambda episode: returns.append(sum(episode.returns.values())))
    status = server.status()
    assert server.stop()
    assert (status.num_episodes, status.num_env_steps) == (num_episodes, 2 * num_episodes)
    assert (status.num_stale_steps, status.problem) == (0, "")
    return status, returns, returns.pop()


@pytest.mark.night  # by day: compliance/test_local_inference.py, to the bit
def test_ppo_learns_the_two_step_game(rllib: None, tmp_path: Path) -> None:
    """Shared by both it finds the payoff of 8; at random it is 4.75, the safe one is 7."""
    _, returns, greedy = learned(PPO, 2_500, tmp_path)
    assert sum(returns[-500:]) / 500 > 7.5
    assert greedy == 8.0


@pytest.mark.night
def test_qmix_learns_the_two_step_game(rllib: None, tmp_path: Path) -> None:
    """Under uniform exploration, where VDN and IQL hold 7; see ``test_two_step_game.py``."""
    _, returns, greedy = learned(QMIX, 2_500, tmp_path)
    assert abs(sum(returns[-1_000:]) / 1_000 - random_return()) < 0.3, "it did explore"
    assert greedy == 8.0
