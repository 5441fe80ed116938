"""Rock, paper, scissors, for one step: two agents, zero sum, and each action loses to another.

Its only equilibrium is uniform play. A best response to any policy is pure, so that learners who
chase each other's newest policy may go round for ever (Fudenberg and Levine 1998, "The Theory of
Learning in Games", chapter 2).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike

from muxrl.experiments.simulations.parallel_game import ParallelGame

AGENTS = ("agent_0", "agent_1")
PAYOFFS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
"""Payoff of an action (row) against another (column): rock, paper, scissors."""


def exploitability(policy: ArrayLike) -> float:
    """Returns the payoff of a best response to a policy: 0 for uniform play, 1 for a pure one."""
    return float((PAYOFFS @ np.asarray(policy)).max())


class RockPaperScissors(ParallelGame):
    """Observation: the number 1, for both."""

    metadata = {"name": "rock_paper_scissors", "render_modes": []}
    is_cut = False

    def __init__(self) -> None:
        super().__init__(
            dict.fromkeys(AGENTS, spaces.Box(0.0, 1.0, (1,), np.float32)),
            dict.fromkeys(AGENTS, spaces.Discrete(3)),
            num_steps=1,
        )

    def _play(self, actions: dict[str, Any]) -> dict[str, float]:
        first, second = (int(actions[agent]) for agent in AGENTS)
        payoff = float(PAYOFFS[first, second])
        return {AGENTS[0]: payoff, AGENTS[1]: -payoff}

    def _observe(self) -> dict[str, Any]:
        return {agent: np.ones(1, np.float32) for agent in self.agents}
