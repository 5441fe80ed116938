"""Dials: every agent is shown where its dials should stand, and turns them there.

Made for this project, as the smallest task with continuous actions that has exact bounds. In each
of T steps agent i is shown D wishes, each drawn uniformly from 0..1, and sets D dials, whose scale
goes from `low` to `high`. It is paid for itself, by how far its dials are from the wishes:

    r = 1 - 2 * mean over the dials of |position - wish|,   position = (action - low)/(high - low)

The scale is not -1..1 and not around 0, and a setting beyond it is an error: who mixes up the
policy's own scale with the simulation's is found out. An agent's return, with T = 10:

    random   T * (1 - 2/3) = 3.3333     the mean distance of two uniform numbers is 1/3
    still    T * (1 - 2/4) = 5          always in the middle
    oracle   T             = 10
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


def random_return(num_steps: int = 10) -> float:
    """Returns an agent's expected return if it sets its dials uniformly at random."""
    return num_steps / 3


def still_return(num_steps: int = 10) -> float:
    """Returns an agent's expected return if all of its dials stay in the middle."""
    return num_steps / 2


def oracle_return(num_steps: int = 10) -> float:
    """Returns an agent's best return."""
    return float(num_steps)


class Dials(ParallelEnv[str, Any, Any]):
    """Observation: the wishes [D], in 0..1; action: the settings [D], in `low`..`high`.

    The episode is cut by a time limit, so agents are truncated.

    Args:
        num_agents: N.
        num_dials: D, for each agent.
        num_steps: T, steps in an episode.
        low: lowest setting of a dial.
        high: highest setting of a dial.

    Raises:
        ValueError: in `step`, if a dial is set beyond its scale.
    """

    metadata = {"name": "dials", "render_modes": []}

    def __init__(
        self,
        num_agents: int = 1,
        num_dials: int = 2,
        num_steps: int = 10,
        low: float = 2.0,
        high: float = 10.0,
    ) -> None:
        self.possible_agents = [f"agent_{i}" for i in range(num_agents)]
        self.agents: list[str] = []
        self.render_mode = None
        self._observation_space = spaces.Box(0.0, 1.0, (num_dials,), np.float32)
        self._action_space = spaces.Box(low, high, (num_dials,), np.float32)
        self._num_steps = num_steps
        self._rng = np.random.default_rng()
        self._t = 0
        self._wishes: dict[str, Any] = {}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Returns the agent's observation space."""
        return self._observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Returns the agent's action space."""
        return self._action_space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Draws the first wishes."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self._t = 0
        return self._wish(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Pays for the settings and draws the next wishes."""
        agents, box = self.agents, self._action_space
        rewards = {}
        for agent in agents:
            setting = np.asarray(actions[agent], np.float32)
            if not box.contains(setting):
                raise ValueError(f"{agent} sets its dials to {setting}, beyond {box}")
            position = (setting - box.low) / (box.high - box.low)
            rewards[agent] = 1.0 - 2.0 * float(np.abs(position - self._wishes[agent]).mean())
        self._t += 1
        is_over = self._t == self._num_steps
        if is_over:
            self.agents = []
        return (
            self._wish(),
            rewards,
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, is_over),
            {agent: {} for agent in agents},
        )

    def _wish(self) -> dict[str, Any]:
        shape = self._observation_space.shape
        self._wishes = {
            agent: self._rng.random(shape, dtype=np.float32) for agent in self.possible_agents
        }
        return dict(self._wishes)
