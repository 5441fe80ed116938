from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from muxrl.client.adapters import make_simulation
from muxrl.protocol.spaces import Discrete

Play = Callable[..., Any]


def test_continuous_actions_and_a_class_as_factory(play: Play) -> None:
    simulation = make_simulation("gymnasium.envs.classic_control:PendulumEnv", {"g": 9.81})
    observations, infos = simulation.reset(seed=1)
    assert observations["agent"].dtype == np.float32
    assert infos == {"agent": {}}
    for _ in range(3):
        assert not simulation.step({"agent": np.zeros(1, np.float64)}).is_over
    simulation.close()
    assert simulation.state_size is None
    assert simulation.state() is None


class Both(gymnasium.Env):
    """Says terminated and truncated at once, and counts in numpy integers."""

    observation_space = spaces.Discrete(3)
    action_space = spaces.Dict({"a": spaces.MultiDiscrete([2, 2], dtype=np.int32)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        return np.int64(1), {}

    def step(self, action: Any) -> tuple[Any, ...]:
        assert self.action_space.contains(action)
        return np.array(2), np.float32(1.5), np.True_, np.True_, {}


def test_terminated_wins_and_numbers_become_plain(play: Play) -> None:
    simulation = make_simulation(f"{__name__}:Both", {})
    assert simulation.observation_spaces == {"agent": Discrete(3)}
    played = play(simulation)
    (result,) = played.results
    assert result.terminations == {"agent": True}
    assert result.truncations == {}
    assert type(result.final_observations["agent"]) is int
    assert result.rewards == {"agent": pytest.approx(1.5)}
