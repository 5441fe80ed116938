"""DQN and SAC with n-step returns learn what the last action of an episode is paid."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import QNetAPI
from ray.rllib.policy.policy import PolicySpec
from tests.nights import at_night

from muxrl.servers.algorithms.registry import get_algorithm
from muxrl.servers.episodes.feed import Feed
from muxrl.servers.episodes.trajectories import Chunk, Trajectory
from muxrl.servers.rllib.env_runner import ExternalEnvRunner

LENGTH = 4
POSITIONS = np.eye(LENGTH, dtype=np.float32)
OVER = np.zeros(LENGTH, np.float32)

pytestmark = [pytest.mark.learning, pytest.mark.usefixtures("rllib")]


class Seat:
    seat_id = policy_id = "a"
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (LENGTH,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)


SEATS: dict[str, Any] = {"a": Seat()}


def chain(number: int, actions: Any) -> Chunk:
    """An episode of four steps; action 1 in the last one is paid 1, nothing else is paid."""
    rewards = np.zeros(LENGTH)
    rewards[-1] = actions[-1] == 1
    observations = np.concatenate([POSITIONS, OVER[None]])
    name, actions = f"chain-{number}", np.array(actions, np.int64)
    one = Trajectory(
        f"{name}_a", name, "a", "a", observations, actions, rewards, {}, is_terminated=True
    )
    return Chunk(name, 0, [one], [1] * LENGTH, is_terminated=True)


@pytest.mark.parametrize("n_step", at_night([1, 3], [1]))
def test_dqn_learns_the_last_action_of_a_chain(n_step: int) -> None:
    config = get_algorithm("DQN").make_config(
        {
            "lr": 0.005,
            "gamma": 1.0,
            "n_step": n_step,
            "train_batch_size": 32,
            "num_steps_sampled_before_learning_starts": 100,
            "target_network_update_freq": 50,
            "dueling": False,
        },
        {"fcnet_hiddens": [32]},
    )
    config.environment(env=None)
    config.multi_agent(
        policies={"a": PolicySpec(None, Seat.observation_space, Seat.action_space)},
        policy_mapping_fn=lambda *args, **kwargs: "a",
    )
    config.env_runners(env_runner_cls=ExternalEnvRunner, num_env_runners=0)
    config.debugging(seed=0)
    algo = config.build_algo()
    feed = Feed(1)
    algo.env_runner.attach(feed, SEATS, needs_log_probabilities=False, fills_replay=True)
    rng = np.random.default_rng(0)
    for number in range(400):
        feed.put([chain(number, rng.integers(2, size=LENGTH))])
        algo.training_step()
    module = algo.learner_group._learner.module["a"]
    assert isinstance(module, QNetAPI)
    with torch.no_grad():
        values = module.compute_q_values({Columns.OBS: torch.from_numpy(POSITIONS)})["qf_preds"]
    assert values[-1].numpy() == pytest.approx([0.0, 1.0], abs=0.1)
    assert values[0].numpy() == pytest.approx([1.0, 1.0], abs=0.25)
    algo.stop()
