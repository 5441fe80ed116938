"""Sentries: members of a team arrive one after another, and die by their own mistakes.

Made for this project, as the smallest task in which a team's members appear late and die early,
with exact bounds. There are T steps. Sentry i arrives at step ``i * arrival_interval``. A sentry
on duty is shown an alarm drawn uniformly from K and should answer with the action of the same
number. A right answer earns it 1; a wrong one earns nothing and kills it. Only the captain, sentry
0, is never killed, so that somebody is always on duty when the latecomers come.

With a_i the arrival of sentry i, the team's return (the sum over sentries) is

    random   T/K + sum_{i>0} sum_{n=1}^{T - a_i} K^-n     (n-th answer right: alive and right)
    oracle   sum_i (T - a_i)

With 3 sentries, K = 3, T = 12 and intervals of 2 they are 4.9997 and 30. Most of
the return goes to members that survive. A learner that went on acting for the dead, or counted
them as truncated instead of terminated, would value death wrongly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from muxrl.experiments.simulations.parallel_game import ParallelGame, Step

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
    """Returns the team's best return: every sentry answers right as long as it is there."""
    return float(sum(num_steps - i * arrival_interval for i in range(num_sentries)))


class Sentries(ParallelGame):
    """Observation: one-hot of the sentry's alarm [K], then of the sentry itself [N]; K actions.

    The state is float32 [N * (K + 2)]: for every sentry whether it is on duty, whether it has been
    killed, and its alarm one-hot, zeros if it is not on duty. (Without the second number a mixer
    cannot tell dead sentries from those still to come, and takes a death to be as harmless as a
    late arrival: QMIX solved the game and lost it again as it met ever fewer deaths.) A killed
    sentry is terminated; the time limit truncates.

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
        sentries = [f"sentry_{i}" for i in range(num_sentries)]
        box = spaces.Box(0.0, 1.0, (num_alarms + num_sentries,), np.float32)
        super().__init__(
            dict.fromkeys(sentries, box),
            {sentry: spaces.Discrete(num_alarms) for sentry in sentries},
            spaces.Box(0.0, 1.0, (num_sentries * (num_alarms + 2),), np.float32),
            num_steps,
        )
        self._num_alarms = num_alarms
        self._arrivals = {a: i * arrival_interval for i, a in enumerate(sentries)}
        self._rows = {agent: i for i, agent in enumerate(sentries)}
        self._alarms = np.zeros((num_steps + 1, num_sentries), np.int64)
        self._killed: set[str] = set()

    def _begin(self) -> None:
        self._killed = set()
        self._alarms = self._rng.integers(self._num_alarms, size=self._alarms.shape)
        self.agents = self._arriving()

    def step(self, actions: dict[str, Any]) -> Step:
        """Pays and kills; then the next sentry arrives, if it is due."""
        on_duty, alarms = self.agents, self._alarms[self._t]
        are_right = {a: int(actions[a]) == int(alarms[self._rows[a]]) for a in on_duty}
        captain = self.possible_agents[0]
        terminations = {a: not is_right and a != captain for a, is_right in are_right.items()}
        self._t += 1
        is_over = self._t == self._num_steps
        truncations = {agent: is_over and not terminations[agent] for agent in on_duty}
        arriving = [] if is_over else self._arriving()
        self.agents = [*on_duty, *arriving]
        seen = self._observe()  # the killed observe once more
        self._killed |= {agent for agent in on_duty if terminations[agent]}
        alive = [agent for agent in on_duty if not terminations[agent]]
        self.agents = [] if is_over else [*alive, *arriving]
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
        """Returns who is on duty, who was killed, and all alarms, float32 [N * (K + 2)]."""
        state = np.zeros((len(self.possible_agents), self._num_alarms + 2), np.float32)
        for agent in self.agents:
            row = self._rows[agent]
            state[row, 0] = 1.0
            state[row, 2 + self._alarms[self._t, row]] = 1.0
        for agent in self._killed:
            state[self._rows[agent], 1] = 1.0
        return state.ravel()

    def _arriving(self) -> list[str]:
        return [agent for agent, arrival in self._arrivals.items() if arrival == self._t]

    def _observe(self) -> dict[str, NDArray[np.float32]]:
        observations = {}
        for agent in self.agents:
            row = self._rows[agent]
            observation = np.zeros(self._num_alarms + len(self.possible_agents), np.float32)
            observation[self._alarms[self._t, row]] = 1.0
            observation[self._num_alarms + row] = 1.0
            observations[agent] = observation
        return observations
