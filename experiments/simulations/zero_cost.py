"""A simulation that costs next to nothing, to measure everything around it.

Observations and right answers are drawn once, when a simulation is made. In each of an episode's T
steps agent i sees a row of standard normal numbers and is paid 1 for the action that is the
index of the largest of the first K of them, else 0. So there is something to learn: an
agent's return is T / K for random actions (100 / 5 = 20) and T for the oracle (100).
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from muxrl.experiments.simulations.parallel_game import ParallelGame


def random_return(num_actions: int = 5, num_steps: int = 100) -> float:
    """Returns each agent's expected return of uniformly random actions."""
    return num_steps / num_actions


def oracle_return(num_steps: int = 100) -> float:
    """Returns each agent's best return."""
    return float(num_steps)


class ZeroCost(ParallelGame):
    """Observation: Box [observation_size] float32; the state is all observations side by side.

    Every episode shows the same observations, whatever its seed, and ends by truncation.

    Args:
        num_agents: agents, all alive for the whole episode.
        observation_size: numbers in an observation, at least `num_actions`.
        num_actions: K.
        num_steps: T, steps in an episode.
        table_seed: seed of the observations.
        pause_s: seconds that each step sleeps, to leave the processors to others.
    """

    metadata = {"name": "zero_cost", "render_modes": []}

    def __init__(
        self,
        num_agents: int = 6,
        observation_size: int = 8,
        num_actions: int = 5,
        num_steps: int = 100,
        table_seed: int = 0,
        pause_s: float = 0.0,
    ) -> None:
        if observation_size < num_actions:
            raise ValueError(
                f"observation_size is {observation_size}, and the answer is hidden in the first "
                f"num_actions = {num_actions} numbers; make it at least that"
            )
        agents = [f"agent_{i}" for i in range(num_agents)]
        super().__init__(
            dict.fromkeys(agents, spaces.Box(-np.inf, np.inf, (observation_size,), np.float32)),
            {agent: spaces.Discrete(num_actions) for agent in agents},
            spaces.Box(-np.inf, np.inf, (num_agents * observation_size,), np.float32),
            num_steps,
        )
        self._pause_s = pause_s
        rng = np.random.default_rng(table_seed)
        shape = (num_steps + 1, num_agents, observation_size)
        table = rng.standard_normal(shape, dtype=np.float32)
        table.setflags(write=False)  # all episodes share it, so it must not change
        self.table = table
        """The observations, float32 ``[T + 1, agents, observation_size]``."""
        self.answers = table[:, :, :num_actions].argmax(axis=2)
        answers = self.answers.tolist()
        self._states = table.reshape(num_steps + 1, -1)
        self._observations = [dict(zip(self.possible_agents, rows, strict=True)) for rows in table]
        self._answers: list[dict[str, int]] = [
            dict(zip(self.possible_agents, row, strict=True)) for row in answers
        ]

    def _play(self, actions: dict[str, Any]) -> dict[str, float]:
        if self._pause_s:
            time.sleep(self._pause_s)
        answers = self._answers[self._t]
        return {agent: float(actions[agent] == answers[agent]) for agent in self.agents}

    def _observe(self) -> dict[str, Any]:
        return self._observations[self._t].copy()

    def state(self) -> NDArray[np.float32]:
        """Returns all agents' observations side by side, float32."""
        return self._states[self._t]


class ZeroCostVector:
    """``N`` copies of `ZeroCost` that are stepped at once; values are arrays ``[N, ...]``.

    Copies begin their first episodes one after another, so that they do not all end in one step.

    Args:
        num_envs: N.
        kwargs: arguments of `ZeroCost`.
    """

    def __init__(self, num_envs: int, **kwargs: Any) -> None:
        self._one = ZeroCost(**kwargs)
        self.num_envs = num_envs
        self.possible_agents = list(self._one.possible_agents)
        self.observation_space = self._one.observation_space
        self.action_space = self._one.action_space
        self.state_space = self._one.state_space
        self._num_steps = len(self._one.table) - 1
        self._t = np.zeros(num_envs, np.int64)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[np.float32]], dict[str, Any]]:
        """Resets all copies, or those in ``options["reset_mask"]``."""
        if options is None:
            self._t = np.arange(self.num_envs) % self._num_steps
        else:
            self._t[options["reset_mask"]] = 0
        return self._observe(), {}

    def step(self, actions: dict[str, NDArray[np.int64]]) -> tuple[Any, Any, Any, Any, Any]:
        """Pays each right answer with 1."""
        answers = self._one.answers[self._t]
        rewards = {
            agent: (actions[agent] == answers[:, i]).astype(np.float64)
            for i, agent in enumerate(self.possible_agents)
        }
        self._t = self._t + 1
        over = self._t == self._num_steps
        return self._observe(), rewards, np.zeros_like(over), over, {}

    def state(self) -> NDArray[np.float32]:
        """Returns all agents' observations side by side, float32 ``[N, state_size]``."""
        return self._one.table.reshape(self._num_steps + 1, -1)[self._t]

    def _observe(self) -> dict[str, NDArray[np.float32]]:
        rows = self._one.table[self._t]
        return {agent: rows[:, i] for i, agent in enumerate(self.possible_agents)}
