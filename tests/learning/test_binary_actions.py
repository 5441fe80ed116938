"""Several switches at once, each by its own cue: MultiBinary actions are learned."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from muxrl.experiments.studies.case_table import evaluated, train
from muxrl.orchestrator.config import ExperimentConfig, SimulationConfig
from muxrl.servers.config import ServerConfig

pytestmark = pytest.mark.learning

NUM_LIGHTS, NUM_STEPS = 4, 8
SETTINGS: dict[str, dict[str, Any]] = {
    "PPO": {"minibatch_size": 128, "num_epochs": 6, "train_batch_size_per_learner": 512},
    "A2C": {"train_batch_size_per_learner": 64},
    "IMPALA": {"train_batch_size_per_learner": 64},
    "APPO": {"train_batch_size_per_learner": 64},
}


class Lights(gymnasium.Env[Any, Any]):
    """Each light is to be on where its number is positive.

    The reward is the part of them that is as it should be, less a half: 0 by chance, 4 at best in
    an episode of 8 steps.
    """

    observation_space = spaces.Box(-1.0, 1.0, (NUM_LIGHTS,), np.float32)
    action_space = spaces.MultiBinary(NUM_LIGHTS)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._t = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        reward = float(np.mean(action == (self._cues > 0))) - 0.5
        self._t += 1
        return self._draw(), reward, self._t == NUM_STEPS, False, {}

    def _draw(self) -> np.ndarray:
        self._cues = self.np_random.choice([-1.0, 1.0], NUM_LIGHTS).astype(np.float32)
        return self._cues


@pytest.mark.parametrize("algorithm", SETTINGS)
def test_every_light_follows_its_cue(algorithm: str) -> None:
    server = ServerConfig(algorithm, ["*"], settings={"lr": 0.003, **SETTINGS[algorithm]})
    config = ExperimentConfig(
        name="lights",
        simulation=SimulationConfig(f"{__name__}:Lights", num_envs_per_process=8),
        servers={"it": server},
    )
    (last,) = train(config, 8_000, None, evaluated(50)).values()
    assert last["return"] > 3.0  # three lights of four are 2; an untrained network is about 0
