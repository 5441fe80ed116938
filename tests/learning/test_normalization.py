"""A task in awkward units is learned with the switches as in its own units, and not without."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from muxrl.experiments.studies.case_table import evaluated, train
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.servers.config import ServerConfig

pytestmark = [pytest.mark.learning, pytest.mark.slow, pytest.mark.timeout(900)]

ENV_STEPS = 30_000
SETTINGS = {
    "train_batch_size_per_learner": 2000, "minibatch_size": 250, "num_epochs": 8, "lr": 0.0005,
}  # fmt: skip
BOTH = {"normalize_observations": True, "normalize_rewards": True}


class FarCartPole(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole whose observations are about 1000 and differ by thousandths, with tiny rewards."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**kwargs)
        return far(observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return far(observation), 1e-3 * float(reward), terminated, truncated, info


def far(observation: Any) -> Any:
    return 1e3 + 1e-3 * np.asarray(observation, np.float64)


def steps_balanced(env: str, seed: int, **switches: bool) -> float:
    """Returns the greedy policy's mean over 20 episodes, in steps, after `ENV_STEPS`."""
    config = ExperimentConfig(
        name="pole",
        seed=seed,
        simulation=SimulationConfig(env, num_envs_per_process=8),
        servers={"it": ServerConfig("PPO", ["*"], settings=SETTINGS, **switches)},
    )
    figures = train(config, ENV_STEPS, None, evaluated(20))
    (last,) = figures.values()
    return last["return"] * (1.0 if env.startswith("gymnasium:") else 1e3)


@pytest.mark.parametrize("seed", [0, 1])
def test_observations_and_rewards_in_awkward_units(seed: int) -> None:
    env = f"{__name__}:FarCartPole"
    assert steps_balanced(env, seed, **BOTH) > 150
    assert steps_balanced(env, seed) < 60, "without the switches the policy sees a constant"


def test_in_its_own_units_it_is_learned_without() -> None:
    assert steps_balanced("gymnasium:CartPole-v1", 0) > 150


class BrightCorner(gymnasium.Env[Any, Any]):
    """Eight images of noise, each with one bright corner, whose number is the right action."""

    observation_space = gymnasium.spaces.Box(0, 255, (10, 10, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == self._corner)
        self._t += 1
        return self._draw(), reward, self._t == 8, False, {}

    def _draw(self) -> np.ndarray:
        image = self.np_random.integers(0, 200, (10, 10, 1), np.uint8)
        self._corner = int(self.np_random.integers(4))
        row, column = divmod(self._corner, 2)
        image[5 * row : 5 * row + 5, 5 * column : 5 * column + 5] += 55
        return image


ON_IMAGES: dict[str, tuple[dict[str, Any], int]] = {
    "PPO": (SETTINGS, 16_000),
    "A2C": (
        {"train_batch_size_per_learner": 400, "lr": 0.002, "standardize_advantages": True,
         "gamma": 0.0},
        12_000,
    ),
    "SAC": (
        {"actor_lr": 0.001, "critic_lr": 0.001, "alpha_lr": 0.003, "initial_alpha": 0.1,
         "gamma": 0.0, "train_batch_size_per_learner": 64, "rollout_fragment_length": 8,
         "num_steps_sampled_before_learning_starts": 400},
        2_000,
    ),
}  # fmt: skip


@pytest.mark.parametrize("algorithm", ON_IMAGES)
@pytest.mark.parametrize("seed", [0, 1])
def test_an_image_is_learned_from_by_default(seed: int, algorithm: str) -> None:
    settings, env_steps = ON_IMAGES[algorithm]

    def solved(**switches: Any) -> float:
        config = ExperimentConfig(
            name="corner",
            seed=seed,
            simulation=SimulationConfig(f"{__name__}:BrightCorner", num_envs_per_process=8),
            servers={"it": ServerConfig(algorithm, ["*"], settings=settings, **switches)},
        )
        (last,) = train(config, env_steps, None, evaluated(50)).values()
        return last["return"]

    assert solved() > 6
    assert solved(scale_observations="none") < 5
