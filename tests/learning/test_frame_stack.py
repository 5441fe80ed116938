"""A task that no single observation shows how to solve is learned from two observations."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from muxrl.experiments.studies.case_table import evaluated, held, train
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.servers.config import ServerConfig

pytestmark = [pytest.mark.learning, pytest.mark.timeout(300)]

ENV_STEPS = 6_000
SETTINGS = {
    "train_batch_size_per_learner": 500, "minibatch_size": 125, "num_epochs": 20, "lr": 0.003,
}  # fmt: skip
NUM_STEPS = 9


class HiddenVelocity(gymnasium.Env[Any, Any]):
    """A ball runs around a ring, one cell a step; each action has to name its hidden direction.

    The cell is one-hot and begins anywhere, so that one observation says nothing of the direction,
    and two say it. Each right answer is paid 1; the first step is always a guess:

        with one observation     NUM_STEPS / 2 = 4.5
        with two                 NUM_STEPS - 0.5 = 8.5
    """

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (5,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t, self._cell = 0, int(self.np_random.integers(5))
        self._is_forward = bool(self.np_random.integers(2))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(bool(action) == self._is_forward)
        self._t += 1
        self._cell = (self._cell + (1 if self._is_forward else -1)) % 5
        return self._observe(), reward, self._t == NUM_STEPS, False, {}

    def _observe(self) -> np.ndarray:
        return np.eye(5, dtype=np.float32)[self._cell]


def learned(frame_stack: int) -> float:
    """Returns the greedy policy's mean return over 50 episodes, after at most `ENV_STEPS`."""
    config = ExperimentConfig(
        name="velocity",
        seed=0,
        simulation=SimulationConfig(f"{__name__}:HiddenVelocity", num_envs_per_process=8),
        servers={"it": ServerConfig("PPO", ["*"], settings=SETTINGS, frame_stack=frame_stack)},
    )
    enough = held(lambda figures: figures["return"] > 8.2)
    measured = train(config, ENV_STEPS, ENV_STEPS // 8, evaluated(50), is_enough=enough)
    return measured[max(measured)]["return"]


def test_a_velocity_is_learned_from_two_frames() -> None:
    assert learned(frame_stack=2) > 8.0


@pytest.mark.night  # it tests the task
def test_a_velocity_is_not_learned_from_one_frame() -> None:
    assert learned(frame_stack=1) < 5.5
