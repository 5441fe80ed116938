"""The base of these games, a PettingZoo ParallelEnv, so that their files hold only the rules.

A game draws its initial values (`_begin`), applies actions and returns rewards (`_play`), and
returns what agents see (`_observe`). The base has the spaces, seeding, the counting of steps, and
the end after the last step. Games whose agents come or leave at different times have their own
`step`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

Reset = tuple[dict[str, Any], dict[str, dict[str, Any]]]
"""Observations, infos; each by agent."""

Step = tuple[
    dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]
]
"""Observations, rewards, terminations, truncations, infos; each by agent."""


class ParallelGame(ParallelEnv[str, Any, Any]):
    """A game in which all agents act at the same time.

    Args:
        observation_spaces: of every possible agent.
        action_spaces: of the same agents.
        state_space: of the state, if the game has one.
        num_steps: T, steps in an episode; None: the game's own `step` ends it.
    """

    render_mode = None
    _infos: Mapping[str, dict[str, Any]] = {}
    """The infos of a step, by agent; `_play` may set them."""
    is_cut = True
    """Whether the last step truncates the agents, as a time limit does, or terminates them."""

    def __init__(
        self,
        observation_spaces: Mapping[str, spaces.Space[Any]],
        action_spaces: Mapping[str, spaces.Space[Any]],
        state_space: spaces.Space[Any] | None = None,
        num_steps: int | None = None,
    ) -> None:
        self.possible_agents = list(observation_spaces)
        self.agents: list[str] = []
        self.observation_spaces = dict(observation_spaces)
        self.action_spaces = dict(action_spaces)
        if state_space is not None:
            self.state_space = state_space
        self._num_steps = num_steps
        self._t = 0
        self._rng = np.random.default_rng()

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Returns the agent's observation space."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Returns the agent's action space."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Begins an episode; without a seed the random numbers of the last episode continue."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._t = 0
        self.agents = list(self.possible_agents)
        self._begin()
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Step:
        """Plays one step, after which the episode may be over."""
        agents = self.agents
        rewards = self._play(actions)
        self._t += 1
        observations = self._observe()
        is_over = self._t == self._num_steps
        if is_over:
            self.agents = []
        return (
            observations,
            rewards,
            dict.fromkeys(agents, is_over and not self.is_cut),
            dict.fromkeys(agents, is_over and self.is_cut),
            {agent: self._infos.get(agent, {}) for agent in agents},
        )

    def _begin(self) -> None:
        """Draws the initial values of an episode; takes agents that come later out of `agents`."""

    def _play(self, actions: dict[str, Any]) -> dict[str, float]:
        """Applies the actions and returns the agents' rewards.

        Each game defines this, unless it has its own `step`.
        """
        raise NotImplementedError

    def _observe(self) -> dict[str, Any]:
        """Returns what the agents in play see now; each game defines this."""
        raise NotImplementedError
