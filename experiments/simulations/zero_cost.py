"""A simulation that costs next to nothing, to measure all that lies around one.

Observations and right answers are drawn once, when it is made. In each of an episode's T
steps agent i sees a row of standard normal numbers and is paid 1 for the action that is the
index of the largest of the first K of them, else 0: there is something to learn, and an
agent's return is T / K for random actions (100 / 5 = 20) and T for the oracle (100).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pettingzoo import ParallelEnv


def random_return(num_actions: int = 5, num_steps: int = 100) -> float:
    """Returns each agent's expected return of uniformly random actions."""
    return num_steps / num_actions


def oracle_return(num_steps: int = 100) -> float:
    """Returns each agent's best return."""
    return float(num_steps)


class ZeroCost(ParallelEnv[str, Any, Any]):
    """Observation: Box [observation_size] float32; the state is all agents' side by side.

    Every episode shows the same observations, whatever its seed, and ends by truncation.

    Args:
        num_agents: agents, all alive for the whole episode.
        observation_size: numbers in an observation, at least `num_actions`.
        num_actions: K.
        num_steps: T, steps in an episode.
        table_seed: seed of the observations.
    """

    metadata = {"name": "zero_cost", "render_modes": []}

    def __init__(
        self,
        num_agents: int = 6,
        observation_size: int = 8,
        num_actions: int = 5,
        num_steps: int = 100,
        table_seed: int = 0,
    ) -> None:
        if observation_size < num_actions:
            raise ValueError(
                f"observation_size is {observation_size}, and the answer is hidden in the first "
                f"num_actions = {num_actions} numbers; make it at least that"
            )
        self.possible_agents = [f"agent_{i}" for i in range(num_agents)]
        self.agents: list[str] = []
        self.render_mode = None
        self.state_space = spaces.Box(-np.inf, np.inf, (num_agents * observation_size,), np.float32)
        self._observation_spaces: dict[str, spaces.Space[Any]] = {
            agent: spaces.Box(-np.inf, np.inf, (observation_size,), np.float32)
            for agent in self.possible_agents
        }
        self._action_spaces: dict[str, spaces.Space[Any]] = {
            agent: spaces.Discrete(num_actions) for agent in self.possible_agents
        }
        rng = np.random.default_rng(table_seed)
        shape = (num_steps + 1, num_agents, observation_size)
        table = rng.standard_normal(shape, dtype=np.float32)
        table.setflags(write=False)  # handed out every episode: nobody may change it
        answers = table[:, :, :num_actions].argmax(axis=2).tolist()
        self._states = table.reshape(num_steps + 1, -1)
        self._observations = [dict(zip(self.possible_agents, rows, strict=True)) for rows in table]
        self._answers: list[dict[str, int]] = [
            dict(zip(self.possible_agents, row, strict=True)) for row in answers
        ]
        self._num_steps = num_steps
        self._t = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Returns the agent's observation space."""
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Returns the agent's action space."""
        return self._action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Starts over with the same observations."""
        self.agents = list(self.possible_agents)
        self._t = 0
        return self._observations[0].copy(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Pays 1 for each right answer."""
        agents, answers = self.agents, self._answers[self._t]
        rewards = {agent: float(actions[agent] == answers[agent]) for agent in agents}
        self._t += 1
        is_over = self._t == self._num_steps
        if is_over:
            self.agents = []
        return (
            self._observations[self._t].copy(),
            rewards,
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, is_over),
            {agent: {} for agent in agents},
        )

    def state(self) -> NDArray[np.float32]:
        """Returns all agents' observations side by side, float32."""
        return self._states[self._t]
