"""A task in awkward units is learned with normalisation, and not without it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from tests.nights import at_night

from muxrl.experiments.studies.case_table import evaluated, held, train
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
    """CartPole with observations about 1000 that differ by thousandths, and tiny rewards."""

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


def steps_balanced(**switches: bool) -> float:
    """Returns the greedy policy's mean steps over 20 episodes, after at most `ENV_STEPS`.

    Training ends earlier if it was above 180 in two measurements.
    """
    config = ExperimentConfig(
        name="pole",
        seed=0,
        simulation=SimulationConfig(f"{__name__}:FarCartPole", num_envs_per_process=8),
        servers={"it": ServerConfig("PPO", ["*"], settings=SETTINGS, **switches)},
    )
    enough = held(lambda figures: figures["return"] * 1e3 > 180)
    figures = train(config, ENV_STEPS, 4_000, evaluated(20), is_enough=enough)
    return figures[max(figures)]["return"] * 1e3


@pytest.mark.night  # by day: its arithmetic, in servers/agents
def test_observations_and_rewards_in_awkward_units_are_learned_with_normalisation() -> None:
    """``test_cartpole.py`` shows that in its own units it is learned without normalisation."""
    assert steps_balanced(**BOTH) > 150
    assert steps_balanced() < 60, "without the switches the policy sees a constant"


@pytest.mark.parametrize("algorithm", at_night(["PPO", "A2C", "SAC"], ["A2C", "SAC"]))
def test_images_are_learned_by_default(algorithm: str) -> None:
    name = f"{algorithm}, 10x10, scaled"
    outcome = IMAGES.run(name, until=lambda figures: figures["return"] > 6.5)
    assert outcome.final["return"] > 6


@pytest.mark.night
def test_images_as_unscaled_bytes_are_not_learned() -> None:
    assert IMAGES.run("PPO, 10x10, raw").final["return"] < 5
