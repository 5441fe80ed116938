"""Predators chase prey on a small torus: a game of two sides that is learned in minutes.

All agents move at the same time by one cell, or stay. A prey that shares its cell with a
predator after the move is caught: every predator is paid 1, the prey pays 1, and it is put on
another cell without a predator. ``caught`` in its info is then 1, else 0. A torus has no
corners, and all are equally fast, so one predator alone never catches a prey that sees it coming:
three must close in from different sides.

It has the sides of `simple_tag` (mpe2) and the sparse reward for a catch, but steps in
microseconds and lets a value-based team show its learning within 100,000 env steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from muxrl.experiments.simulations.parallel_game import ParallelGame

MOVES = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))
"""Moves by action: stay, and one cell along an axis."""


class TorusChase(ParallelGame):
    """Agents ``predator_0 ..`` and ``prey_0 ..``.

    Observation, Box float32 [2 * (agents - 1)]: the relative position of every other agent,
    the other side first; two numbers in [-1, 1] each, the shorter way round.

    Args:
        num_predators: agents on one side.
        num_prey: agents on the other side.
        size: cells along an axis.
        num_steps: steps in an episode, which ends by truncation.
    """

    metadata = {"name": "torus_chase", "render_modes": []}

    def __init__(
        self, num_predators: int = 3, num_prey: int = 2, size: int = 7, num_steps: int = 25
    ) -> None:
        if num_predators < 1 or num_prey < 1 or size < 3 or num_steps < 1:
            raise ValueError(
                "TorusChase needs a predator, a prey, 3 cells and a step at least, got "
                f"{num_predators}, {num_prey}, {size}, {num_steps}"
            )
        self.predators = [f"predator_{i}" for i in range(num_predators)]
        self.prey = [f"prey_{i}" for i in range(num_prey)]
        n = num_predators + num_prey
        box = spaces.Box(-1.0, 1.0, (2 * (n - 1),), np.float32)
        agents = self.predators + self.prey
        super().__init__(
            dict.fromkeys(agents, box),
            {agent: spaces.Discrete(len(MOVES)) for agent in agents},
            num_steps=num_steps,
        )
        self._size = size
        self._first_prey = num_predators
        # Row i: the others as agent i sees them, the other side first.
        predators, prey = list(range(num_predators)), list(range(num_predators, n))
        self._order = np.array(
            [
                [j for j in (prey + predators if i < num_predators else predators + prey) if j != i]
                for i in range(n)
            ]
        )
        self._moves = np.array(MOVES)
        self._cells = np.zeros((n, 2), np.int64)

    def _begin(self) -> None:
        self._cells[:] = self._rng.integers(self._size, size=self._cells.shape)
        for row in range(self._first_prey, len(self._cells)):
            self._set_down(row)

    def _play(self, actions: dict[str, Any]) -> dict[str, float]:
        chosen = [int(actions[agent]) for agent in self.agents]
        self._cells = (self._cells + self._moves[chosen]) % self._size
        caught = [
            row
            for row in range(self._first_prey, len(self._cells))
            if (self._cells[: self._first_prey] == self._cells[row]).all(axis=1).any()
        ]
        self._infos = {
            self.possible_agents[row]: {"caught": int(row in caught)}
            for row in range(self._first_prey, len(self._cells))
        }
        rewards = dict.fromkeys(self.predators, float(len(caught))) | dict.fromkeys(self.prey, 0.0)
        for row in caught:
            rewards[self.possible_agents[row]] = -1.0
            self._set_down(row)
        return rewards

    def _set_down(self, row: int) -> None:
        taken = {tuple(cell) for cell in self._cells[: self._first_prey].tolist()}
        while tuple(self._cells[row].tolist()) in taken:
            self._cells[row] = self._rng.integers(self._size, size=2)

    def _observe(self) -> dict[str, NDArray[np.float32]]:
        half = self._size // 2
        away = (self._cells[None] - self._cells[:, None] + half) % self._size - half
        seen = np.take_along_axis(away, self._order[:, :, None], axis=1)
        rows = (seen.reshape(len(seen), -1) / half).astype(np.float32)
        return dict(zip(self.possible_agents, np.clip(rows, -1.0, 1.0), strict=True))
