"""A task in awkward units is learned with the switches as in its own units, and not without."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from muxrl.experiments.studies.case_table import evaluated, train
from muxrl.experiments.studies.images.cases import TABLE as IMAGES
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


@pytest.mark.parametrize("algorithm", ["PPO", "A2C", "SAC"])
@pytest.mark.parametrize("seed", [0, 1])
def test_an_image_is_learned_from_by_default(seed: int, algorithm: str) -> None:
    def solved(scaling: str) -> float:
        return IMAGES.run(f"{algorithm}, 10x10, {scaling}", seed).final["return"]

    assert solved("scaled") > 6
    assert solved("raw") < 5
