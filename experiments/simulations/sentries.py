"""Sentries: members of a team arrive one after another, and die by their own mistakes.

Made for this project, as the smallest task in which a team's members appear late and die early,
with exact bounds. There are T steps. Sentry i arrives at step ``i * arrival_interval``. A sentry
on duty is shown an alarm drawn uniformly from K and should answer with the action of the same
number. A right answer earns it 1; a wrong one earns nothing and kills it, except for the captain,
sentry 0, who is never killed: somebody is always on duty, so the latecomers do come.

With a_i the arrival of sentry i, the team's return (the sum over sentries) is

    random   T/K + sum_{i>0} sum_{n=1}^{T - a_i} K^-n     (n-th answer right: alive and right)
    oracle   sum_i (T - a_i)

With 3 sentries, K = 3, T = 12 and intervals of 2 they are 4.9997 and 30. Who never dies earns all;
so most of the return is seen only by a learner whose members survive, and a learner that went on
acting for the dead, or that counted them as cut short instead of ended, would value death wrongly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

NUM_SENTRIES, NUM_ALARMS, NUM_STEPS, ARRIVAL_INTERVAL = 3, 3, 12, 2


def random_return(
    num_sentries: int = NUM_SENTRIES,
    num_alarms: int = NUM_ALARMS,
    num_steps: int = NUM_STEPS,
    arrival_interval: int = ARRIVAL_INTERVAL,
) -> float:
    """Returns the team's expected return if all act uniformly at random."""
    right = 1 / num_alarms
    return num_steps * right + sum(
        sum(right**n for n in range(1, num_steps - i * arrival_interval + 1))
        for i in range(1, num_sentries)
    )


def oracle_return(
    num_sentries: int = NUM_SENTRIES,
    num_steps: int = NUM_STEPS,
    arrival_interval: int = ARRIVAL_INTERVAL,
) -> float:
    """Returns the team's best return: everybody answers right as long as it is there."""
    return float(sum(num_steps - i * arrival_interval for i in range(num_sentries)))


class Sentries(ParallelEnv[str, Any, Any]):
    """Observation: one-hot of one's alarm [K], then of oneself [N]; K actions.

    The state is float32 [N * (K + 1)]: of every sentry whether it is on duty, and its alarm
    one-hot, zeros if it is not. A killed sentry is terminated; the time limit truncates.

    Args:
        num_sentries: N.
        num_alarms: K, alarms and actions.
        num_steps: T.
        arrival_interval: steps between two arrivals; 0: all are there from the start.
    """

    metadata = {"name": "sentries", "render_modes": []}

    def __init__(
        self,
        num_sentries: int = NUM_SENTRIES,
        num_alarms: int = NUM_ALARMS,
        num_steps: int = NUM_STEPS,
        arrival_interval: int = ARRIVAL_INTERVAL,
    ) -> None:
        if num_sentries < 1 or num_alarms < 2 or (num_sentries - 1) * arrival_interval >= num_steps:
            raise ValueError(
                "Sentries needs a sentry, 2 alarms, and steps left after the last arrival, got "
                f"{num_sentries}, {num_alarms} and {num_steps} steps with arrivals every "
                f"{arrival_interval}"
            )
        self.possible_agents = [f"sentry_{i}" for i in range(num_sentries)]
        self.agents: list[str] = []
        self.render_mode = None
        box = spaces.Box(0.0, 1.0, (num_alarms + num_sentries,), np.float32)
        self.observation_spaces = dict.fromkeys(self.possible_agents, box)
        self.action_spaces: dict[str, spaces.Space[Any]] = {
            agent: spaces.Discrete(num_alarms) for agent in self.possible_agents
        }
        self.state_space = spaces.Box(0.0, 1.0, (num_sentries * (num_alarms + 1),), np.float32)
        self._num_alarms, self._num_steps = num_alarms, num_steps
        self._arrivals = {a: i * arrival_interval for i, a in enumerate(self.possible_agents)}
        self._rows = {agent: i for i, agent in enumerate(self.possible_agents)}
        self._rng = np.random.default_rng()
        self._t = 0
        self._alarms = np.zeros((num_steps + 1, num_sentries), np.int64)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[np.float32]], dict[str, dict[str, Any]]]:
        """Draws the episode's alarms; whoever arrives at step 0 is on duty."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._t = 0
        self._alarms = self._rng.integers(self._num_alarms, size=self._alarms.shape)
        self.agents = self._arriving()
        return self._observe(self.agents), {agent: {} for agent in self.agents}

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[
        dict[str, NDArray[np.float32]],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """Pays and kills; then the next sentry arrives, if it is its time."""
        on_duty, alarms = self.agents, self._alarms[self._t]
        are_right = {a: int(actions[a]) == int(alarms[self._rows[a]]) for a in on_duty}
        captain = self.possible_agents[0]
        terminations = {a: not is_right and a != captain for a, is_right in are_right.items()}
        self._t += 1
        is_over = self._t == self._num_steps
        truncations = {agent: is_over and not terminations[agent] for agent in on_duty}
        self.agents = [agent for agent in on_duty if not terminations[agent]]
        arriving = [] if is_over else self._arriving()
        self.agents += arriving
        seen = self._observe([*on_duty, *arriving])
        if is_over:
            self.agents = []
        newcomers = dict.fromkeys(arriving, False)
        return (
            seen,
            {agent: float(is_right) for agent, is_right in are_right.items()}
            | dict.fromkeys(arriving, 0.0),
            terminations | newcomers,
            truncations | newcomers,
            {agent: {} for agent in seen},
        )

    def state(self) -> NDArray[np.float32]:
        """Returns who is on duty and sees which alarm, float32 [N * (K + 1)]."""
        state = np.zeros((len(self.possible_agents), self._num_alarms + 1), np.float32)
        for agent in self.agents:
            row = self._rows[agent]
            state[row, 0] = 1.0
            state[row, 1 + self._alarms[self._t, row]] = 1.0
        return state.ravel()

    def _arriving(self) -> list[str]:
        return [agent for agent, arrival in self._arrivals.items() if arrival == self._t]

    def _observe(self, agents: list[str]) -> dict[str, NDArray[np.float32]]:
        observations = {}
        for agent in agents:
            row = self._rows[agent]
            observation = np.zeros(self._num_alarms + len(self.possible_agents), np.float32)
            observation[self._alarms[self._t, row]] = 1.0
            observation[self._num_alarms + row] = 1.0
            observations[agent] = observation
        return observations
