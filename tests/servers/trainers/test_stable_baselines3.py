"""Stable-Baselines3 does by its adapter what it does alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.lookup import find
from muxrl.servers.trainers.interface import PolicySpec, Rows
from muxrl.servers.trainers.lookup import registered

NUM_STEPS, SEED = 480, 3
SETTINGS: dict[str, Any] = {
    "learning_starts": 100,
    "buffer_size": 300,
    "gradient_steps": -1,
    "target_update_interval": 10,
    "exploration_fraction": 0.5,
}


def pieces_of(trainer: Any, env: gymnasium.Env, every: int) -> Iterator[list[Trajectory]]:
    """Plays with a trainer's actions; yields the pieces of each batch."""
    seen: list[Any] = [env.reset(seed=SEED)[0]]
    acted: list[int] = []
    paid: list[float] = []
    batch: list[Trajectory] = []

    def cut(*, is_terminated: bool, is_truncated: bool) -> None:
        if acted:
            arrays = np.array(seen), np.array(acted), np.array(paid)
            one = Trajectory("e_a", "e", "a", "default", *arrays, {})
            one.is_terminated, one.is_truncated = is_terminated, is_truncated
            batch.append(one)
        del seen[:-1], acted[:], paid[:]

    for t in range(1, NUM_STEPS + 1):
        rng = np.random.default_rng(0)
        rows = Rows(seen[-1][None], None, [None], ("a",), True, True, rng)
        acted.append(int(trainer.act(rows)[0]))
        observed, reward, is_terminated, is_truncated, _ = env.step(acted[-1])
        seen.append(observed)
        paid.append(float(reward))
        if is_terminated or is_truncated:
            cut(is_terminated=is_terminated, is_truncated=is_truncated)
            seen[:] = [env.reset()[0]]
        if t % every == 0:
            cut(is_terminated=False, is_truncated=False)
            yield batch.copy()
            batch.clear()


def test_on_policy_algorithms_refuse_logged_actions() -> None:
    from muxrl.servers.trainers.stable_baselines3 import PPO

    box, discrete = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)
    trainer = PPO(PolicySpec("p", ("a",), box, discrete), batch_env_steps=2, total_timesteps=9)
    outputs = {
        "value": np.zeros(2, np.float32),
        "log_prob": np.zeros(2, np.float32),
        "is_logged": np.array([False, True]),
    }
    seen, acted, paid = np.zeros((3, 2), np.float32), np.zeros(2, int), np.zeros(2)
    one = Trajectory("e_a", "e", "a", "default", seen, acted, paid, outputs)
    with pytest.raises(ValueError, match="the simulation logged actions, and Stable-Baselines3"):
        trainer.learn([one])


def test_dqn_does_to_the_bit_what_it_does_alone() -> None:
    """Weights agree through the start of learning, all of exploration, time limits and a full
    replay."""
    import stable_baselines3
    from stable_baselines3.common.logger import Logger

    from muxrl.servers.trainers.stable_baselines3 import DQN

    def env() -> gymnasium.Env:
        return gymnasium.make("CartPole-v1", max_episode_steps=20)

    alone = stable_baselines3.DQN(
        "MlpPolicy", env(), seed=SEED, device="cpu", train_freq=16, **SETTINGS
    )
    # Its own logger makes a folder in /tmp.
    alone.set_logger(Logger(folder=None, output_formats=[]))
    alone.learn(NUM_STEPS)
    action_space: gymnasium.Space = gymnasium.spaces.Discrete(2)
    observation_space = env().observation_space
    assert isinstance(observation_space, gymnasium.spaces.Box)
    spec = PolicySpec("default", ("a",), observation_space, action_space, seed=SEED)
    trainer = DQN(spec, batch_env_steps=16, total_timesteps=NUM_STEPS, **SETTINGS)
    for batch in pieces_of(trainer, env(), 16):
        trainer.learn(batch)
    parameters = trainer.state()["parameters"]["policy"]
    assert alone.num_timesteps == trainer.state()["num_timesteps"] == NUM_STEPS
    for name, theirs in alone.policy.state_dict().items():
        assert torch.equal(theirs, parameters[name]), name


def told_by(name: str, last: str, bias: Any) -> Any:
    """Returns a trainer whose last layer has the same output for any input, and two rows."""
    from muxrl.servers.trainers import sb3_contrib, stable_baselines3

    box, three = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(3)
    make = getattr(stable_baselines3, name, None) or getattr(sb3_contrib, name)
    trainer = make(PolicySpec("p", ("a",), box, three), batch_env_steps=2, total_timesteps=9)
    network: Any = trainer._model.policy.get_submodule(last)
    with torch.no_grad():
        network.weight.zero_()
        network.bias.copy_(torch.as_tensor(bias))
    seen = np.ones((2, 2), np.float32)
    rows = Rows(seen, None, [None] * 2, ("a", "a"), True, False, np.random.default_rng(0))
    return trainer, rows


@pytest.mark.parametrize("name", ["PPO", "A2C", "TRPO"])
def test_on_policy_algorithms_return_their_probabilities_and_values(name: str) -> None:
    expected = [0.5, 0.3, 0.2]
    trainer, rows = told_by(name, "action_net", np.log(expected))
    np.testing.assert_allclose(trainer.probabilities(rows), [expected] * 2, rtol=1e-6)
    trainer, rows = told_by(name, "value_net", [2.5])
    assert trainer.value(rows).tolist() == [2.5, 2.5]


@pytest.mark.parametrize(
    ("name", "last", "bias"),
    [("DQN", "q_net.q_net.4", [1.0, -2.0, 3.0]),
     ("QRDQN", "quantile_net.quantile_net.4", np.tile([[1.0, -2.0, 3.0]], (200, 1)).ravel())],
)  # fmt: skip
def test_the_value_of_algorithms_with_action_values_is_the_highest(
    name: str, last: str, bias: Any
) -> None:
    trainer, rows = told_by(name, last, bias)
    assert trainer.value(rows).tolist() == [3.0, 3.0]
    trainer._model.exploration_rate = 0.25
    other, _ = told_by(name, last, np.zeros(len(bias)))
    other.set_weights(trainer.weights())
    assert other.value(rows).tolist() == [3.0, 3.0]
    assert other._model.exploration_rate == 0.25
    earlier = {name: one for name, one in trainer.weights().items() if name != "exploration_rate"}
    other.set_weights(earlier)  # as in older checkpoints
    assert other._model.exploration_rate == 0.25


def test_algorithms_that_only_add_noise_do_not_draw_from_a_distribution() -> None:
    sampled = [
        name for name in registered() if name.startswith("SB3") and find(name).samples_actions
    ]
    assert {"SB3_PPO", "SB3_SAC"} <= {*sampled}
    assert {"SB3_DQN", "SB3_TD3", "SB3_QRDQN"}.isdisjoint(sampled)


def test_td3_draws_noise_for_each_row() -> None:
    from muxrl.servers.trainers.stable_baselines3 import TD3

    box = gymnasium.spaces.Box(-1, 1, (2,))
    trainer = TD3(PolicySpec("p", ("a",), box, box), noise_std=0.1, learning_starts=0,
                  batch_env_steps=2, total_timesteps=9_000)  # fmt: skip
    seen = np.zeros((500, 2), np.float32)

    def act(*, explores: bool, learns: bool = True) -> Any:
        rng = np.random.default_rng(0)
        return trainer.act(Rows(seen, None, [None] * 500, ("a",) * 500, explores, learns, rng))

    for learns in (True, False):  # False: as an opponent that explores
        noise = act(explores=True, learns=learns) - act(explores=False, learns=learns)
        assert noise.std(axis=0) == pytest.approx([0.1, 0.1], rel=0.2)
    assert np.array_equal(act(explores=True), act(explores=True)), "it is the server's generator"
