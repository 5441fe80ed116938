"""Stairs with two ways on every step: the smallest task that needs a curriculum.

Made for this project. One of two actions leads up, which one depends on the step; the other ends
the climber's game. The top pays 1, everything else 0. An episode begins `distance` steps below
the top, which is a parameter of `reset`. Random climbers reach the top with probability
``2^-distance``. So from far below nothing is ever paid, and nothing learned; from near the top the
last steps are learned first, and the others after them (Florensa et al. 2017, arXiv 1707.05300).
The best return is 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from muxrl.experiments.simulations.parallel_game import ParallelGame, Reset, Step


class Stairs(ParallelGame):
    """Observation: one-hot of the steps that are left [height]; ``at_top`` in infos is 1 or 0.

    Args:
        num_climbers: number of climbers, each on its own stairs.
        height: H, number of steps, and the distance unless a reset gives another.
    """

    metadata = {"name": "stairs", "render_modes": []}

    def __init__(self, num_climbers: int = 2, height: int = 20) -> None:
        agents = [f"climber_{i}" for i in range(num_climbers)]
        seen = spaces.Box(0.0, 1.0, (height,), np.float32)
        super().__init__(
            dict.fromkeys(agents, seen), dict.fromkeys(agents, spaces.Discrete(2)), None
        )
        self._up = np.random.default_rng(0).integers(0, 2, height + 1)
        self._height = self._distance = height
        self._left: dict[str, int] = {}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Puts the climbers ``options["distance"]`` steps (1 to H) below the top."""
        distance = int((options or {}).get("distance", self._height))
        if not 1 <= distance <= self._height:
            raise ValueError(f"distance is {distance}; the stairs have {self._height} steps")
        self._left = dict.fromkeys(self.possible_agents, distance)
        return super().reset(seed, options)

    def step(self, actions: dict[str, Any]) -> Step:
        """Moves the climbers up, or ends their game."""
        acted = self.agents
        is_up = {a: int(actions[a]) == self._up[self._left[a]] for a in acted}
        for agent in acted:
            self._left[agent] -= is_up[agent]
        at_top = {a: is_up[a] and not self._left[a] for a in acted}
        done = {a: at_top[a] or not is_up[a] for a in acted}
        observations = self._observe()
        self.agents = [a for a in acted if not done[a]]
        return (
            observations,
            {a: float(at_top[a]) for a in acted},
            done,
            dict.fromkeys(acted, False),
            {a: {"at_top": float(at_top[a])} for a in acted},
        )

    def _observe(self) -> dict[str, Any]:
        one_hots = np.eye(self._height + 1, dtype=np.float32)[:, 1:]
        return {a: one_hots[self._left[a]] for a in self.agents}
