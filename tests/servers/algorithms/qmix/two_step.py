"""The two-step game of Rashid et al. 2018, appendix B."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from ray.rllib.env.multi_agent_env import MultiAgentEnv

AGENTS = ("agent_0", "agent_1")
PAYOFF_2B = np.array([[0.0, 1.0], [1.0, 8.0]])


class TwoStepGame(MultiAgentEnv):
    """Agent 0 picks the second game; in 2A everything pays 7, in 2B see `PAYOFF_2B`.

    Observations: the state as a one-hot ``[3]`` (first step, 2A, 2B). The reward is shared: each
    agent gets half, so that the team's sum is the paper's payoff.
    """

    def __init__(self, config: Any = None) -> None:
        self.agents = self.possible_agents = list(AGENTS)
        self.observation_spaces = {a: spaces.Box(0.0, 1.0, (3,), np.float32) for a in AGENTS}
        self.action_spaces = {a: spaces.Discrete(2) for a in AGENTS}
        super().__init__()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._at = 0
        return self._observe(), {}

    def step(self, action_dict: dict[str, int]) -> Any:
        a, b = (action_dict[agent] for agent in AGENTS)
        if self._at == 0:
            self._at, reward, done = 1 + int(a), 0.0, False
        elif self._at == 1:
            reward, done = 7.0, True
        else:
            reward, done = float(PAYOFF_2B[a, b]), True
        rewards = dict.fromkeys(AGENTS, reward / 2)
        return self._observe(), rewards, {"__all__": done}, {"__all__": False}, {}

    def _observe(self) -> dict[str, np.ndarray]:
        return {agent: np.eye(3, dtype=np.float32)[self._at] for agent in AGENTS}
