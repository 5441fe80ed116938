"""A game of two sides whose returns sum to zero: each is paid its number less the other's."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from muxrl.experiments.simulations.parallel_game import ParallelGame


class Duel(ParallelGame):
    """Observation: four random numbers for each side, which mean nothing. Action: 0, 1 or 2.

    The return of "left" is the sum of its actions less the sum of the other side's.
    """

    metadata = {"name": "duel", "render_modes": []}

    def __init__(self, num_steps: int = 8) -> None:
        agents = ["left", "right"]
        super().__init__(
            dict.fromkeys(agents, spaces.Box(-1.0, 1.0, (4,), np.float32)),
            dict.fromkeys(agents, spaces.Discrete(3)),
            num_steps=num_steps,
        )

    def _play(self, actions: dict[str, Any]) -> dict[str, float]:
        won = float(int(actions["left"]) - int(actions["right"]))
        return {"left": won, "right": -won}

    def _observe(self) -> dict[str, Any]:
        return {a: self._rng.uniform(-1, 1, 4).astype(np.float32) for a in self.possible_agents}
