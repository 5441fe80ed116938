"""Cooperative matrix games of one step: climbing, penalty, or any given payoff table.

Claus and Boutilier 1998, "The Dynamics of Reinforcement Learning in Cooperative Multiagent
Systems" (AAAI-98). Rows are agent_0's actions, columns agent_1's; the team is paid:

    climbing   11 -30   0      penalty   10   0   k
              -30   7   6                 0   2   0
                0   0   5                 k   0  10      (k <= 0, here -100 unless given)

Climbing: the optimum, 11 at (0, 0), lies next to heavy penalties, and independent learners
fall back to 7 or 5. Penalty: two optima of 10, at (0, 0) and (2, 2), and k for failing to
agree on one; 2 at (1, 1) is safe. Each agent gets half of the payoff, so that the sum over
both is the team reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from muxrl.experiments.simulations.parallel_game import ParallelGame

Game = Literal["climbing", "penalty"]


def payoffs_of(game: Game, k: float = -100.0) -> NDArray[np.float64]:
    """Returns the payoff table [agent_0's action, agent_1's action]; only penalty reads `k`."""
    if game == "climbing":
        return np.array([[11.0, -30.0, 0.0], [-30.0, 7.0, 6.0], [0.0, 0.0, 5.0]])
    if game == "penalty":
        return np.array([[10.0, 0.0, k], [0.0, 2.0, 0.0], [k, 0.0, 10.0]])
    raise ValueError(f"there is no matrix game {game!r}; known are 'climbing' and 'penalty'")


def random_return(game: Game, k: float = -100.0) -> float:
    """Returns the expected team return of uniformly random actions, the table's mean."""
    return float(payoffs_of(game, k).mean())


def oracle_return(game: Game, k: float = -100.0) -> float:
    """Returns the best team return, the table's maximum."""
    return float(payoffs_of(game, k).max())


class MatrixGame(ParallelGame):
    """Observation: one-hot of the agent [2], always the same; the state is the number 1.

    Args:
        game: the table's name; 'climbing' if no `payoffs` are given.
        payoffs: another table instead, [agent_0's action][agent_1's action].
        k: the payoff of the game 'penalty' for failing to agree.
    """

    metadata = {"name": "matrix_game", "render_modes": []}
    is_cut = False

    def __init__(
        self,
        game: Game | None = None,
        payoffs: Sequence[Sequence[float]] | None = None,
        k: float = -100.0,
    ) -> None:
        if game is not None and payoffs is not None:
            raise ValueError("give either game or payoffs: both name a payoff table")
        self._payoffs = (
            payoffs_of(game or "climbing", k) if payoffs is None else np.asarray(payoffs, float)
        )
        if self._payoffs.ndim != 2:
            raise ValueError(f"payoffs is a table of 2 dimensions, got {self._payoffs.ndim}")
        agents = ["agent_0", "agent_1"]
        super().__init__(
            dict.fromkeys(agents, spaces.Box(0.0, 1.0, (2,), np.float32)),
            {a: spaces.Discrete(n) for a, n in zip(agents, self._payoffs.shape, strict=True)},
            spaces.Box(0.0, 1.0, (1,), np.float32),
            num_steps=1,
        )

    def _play(self, actions: dict[str, Any]) -> dict[str, float]:
        first, second = (int(actions[agent]) for agent in self.possible_agents)
        return dict.fromkeys(self.agents, float(self._payoffs[first, second]) / 2)

    def state(self) -> NDArray[np.float32]:
        """Returns the only state there is, float32 [1]."""
        return np.ones(1, np.float32)

    def _observe(self) -> dict[str, Any]:
        return dict(zip(self.possible_agents, np.eye(2, dtype=np.float32), strict=True))
