"""The recall game: a cue is shown at the start, and asked for at the end.

Made for this project, as the smallest task that needs memory, with exact bounds. At step 0 agent i
is shown a cue drawn uniformly from K, then nothing for some steps; at the last step it is asked,
and paid 1 if it answers with the action of the cue's number. What it does before is not paid. At
the question all episodes look alike, so without memory nothing is better than one fixed answer:

    random, or without memory   1 / K
    oracle                      1
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


def memoryless_return(num_cues: int = 4) -> float:
    """Returns an agent's best expected return without memory, which is also a random one's."""
    return 1.0 / num_cues


def oracle_return() -> float:
    """Returns an agent's best return."""
    return 1.0


class RecallGame(ParallelEnv[str, Any, Any]):
    """Observation: one-hot of the cue [K], zeros after step 0, then 1 if this is the question.

    Actions are the K cues. The game ends with the answer, so agents are terminated.

    Args:
        num_agents: N.
        num_cues: K.
        delay: steps between the cue and the question.
    """

    metadata = {"name": "recall_game", "render_modes": []}

    def __init__(self, num_agents: int = 1, num_cues: int = 4, delay: int = 3) -> None:
        self.possible_agents = [f"agent_{i}" for i in range(num_agents)]
        self.agents: list[str] = []
        self.render_mode = None
        self._observation_space = spaces.Box(0.0, 1.0, (num_cues + 1,), np.float32)
        self._action_space: spaces.Space[Any] = spaces.Discrete(num_cues)
        self._num_cues = num_cues
        self._last_t = delay + 1
        self._rng = np.random.default_rng()
        self._t = 0
        self._cues: dict[str, int] = {}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Returns the agent's observation space."""
        return self._observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Returns the agent's action space."""
        return self._action_space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Draws the cues and shows them."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self._t = 0
        self._cues = {agent: int(self._rng.integers(self._num_cues)) for agent in self.agents}
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Goes on to the question, and pays for the answer to it."""
        agents = self.agents
        is_over = self._t == self._last_t
        rewards = {
            agent: float(is_over and int(actions[agent]) == self._cues[agent]) for agent in agents
        }
        self._t += 1
        if is_over:
            self.agents = []
        return (
            self._observe(),
            rewards,
            dict.fromkeys(agents, is_over),
            dict.fromkeys(agents, False),
            {agent: {} for agent in agents},
        )

    def _observe(self) -> dict[str, Any]:
        observations = {}
        for agent, cue in self._cues.items():
            observation = np.zeros(self._num_cues + 1, np.float32)
            if self._t == 0:
                observation[cue] = 1.0
            observation[-1] = self._t == self._last_t
            observations[agent] = observation
        return observations
