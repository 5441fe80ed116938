"""The two-step cooperative matrix game of the QMIX paper.

Rashid et al. 2018, "QMIX: Monotonic Value Function Factorisation for Deep Multi-Agent
Reinforcement Learning", section 5 (https://arxiv.org/abs/1803.11485).

In state 1 the first agent alone decides: action 0 leads to state 2A, action 1 to state 2B,
with no reward. There both agents choose, and the team is paid:

    2A   7  7        2B   0  1
         7  7             1  8

The optimum is 2B and both agents' action 1: 8. Independent learners and VDN tend to settle
for the safe 7 of state 2A. Each agent gets half of the payoff, so that the sum over both is
the paper's team reward.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from muxrl.experiments.simulations.parallel_game import ParallelGame

STATE_1, STATE_2A, STATE_2B = range(3)
PAYOFFS = {STATE_2A: ((7.0, 7.0), (7.0, 7.0)), STATE_2B: ((0.0, 1.0), (1.0, 8.0))}


def random_return() -> float:
    """Returns the expected team return of uniformly random actions: half 7, half 2.5."""
    return float(np.mean(list(PAYOFFS.values())))


def oracle_return() -> float:
    """Returns the best team return."""
    return float(np.max(list(PAYOFFS.values())))


class TwoStepGame(ParallelGame):
    """Observation: one-hot of the state [3], then one-hot of the agent [2]; two actions."""

    metadata = {"name": "two_step_game", "render_modes": []}
    is_cut = False

    def __init__(self) -> None:
        agents = ["agent_0", "agent_1"]
        super().__init__(
            dict.fromkeys(agents, spaces.Box(0.0, 1.0, (5,), np.float32)),
            {agent: spaces.Discrete(2) for agent in agents},
            spaces.Box(0.0, 1.0, (3,), np.float32),
            num_steps=2,
        )
        self._state = STATE_1

    def _begin(self) -> None:
        self._state = STATE_1

    def _play(self, actions: dict[str, Any]) -> dict[str, float]:
        first, second = (int(actions[agent]) for agent in self.possible_agents)
        payoff = 0.0
        if self._state == STATE_1:
            self._state = STATE_2A if first == 0 else STATE_2B
        else:
            payoff = PAYOFFS[self._state][first][second]  # still in 2A or 2B
        return dict.fromkeys(self.agents, payoff / 2)

    def state(self) -> NDArray[np.float32]:
        """Returns the one-hot of the state, float32 [3]."""
        return np.eye(3, dtype=np.float32)[self._state]

    def _observe(self) -> dict[str, Any]:
        state, agent_ids = self.state(), np.eye(2, dtype=np.float32)
        return {
            agent: np.concatenate([state, agent_ids[i]])
            for i, agent in enumerate(self.possible_agents)
        }
