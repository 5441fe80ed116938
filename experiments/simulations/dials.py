"""Dials: every agent is shown where its dials should stand, and turns them there.

Made for this project, as the smallest task with continuous actions that has exact bounds. In each
of T steps agent i is shown D wishes, each drawn uniformly from 0..1, and sets D dials, whose scale
goes from `low` to `high`. It is paid for itself, by how far its dials are from the wishes:

    r = 1 - 2 * mean over the dials of |position - wish|,   position = (action - low)/(high - low)

The scale is neither -1..1 nor centred on 0, and a setting beyond it is an error, so that actions on
the policy's own scale do not pass for the simulation's. An agent's return, with T = 10:

    random   T * (1 - 2/3) = 3.3333     the mean distance of two uniform numbers is 1/3
    still    T * (1 - 2/4) = 5          always in the middle
    oracle   T             = 10
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from muxrl.experiments.simulations.parallel_game import ParallelGame


def random_return(num_steps: int = 10) -> float:
    """Returns an agent's expected return if it sets its dials uniformly at random."""
    return num_steps / 3


def still_return(num_steps: int = 10) -> float:
    """Returns an agent's expected return if all of its dials stay in the middle."""
    return num_steps / 2


def oracle_return(num_steps: int = 10) -> float:
    """Returns an agent's best return."""
    return float(num_steps)


class Dials(ParallelGame):
    """Observation: the wishes [D], in 0..1; action: the settings [D], in `low`..`high`.

    A time limit ends the episode, so agents are truncated.

    Args:
        num_agents: N.
        num_dials: D, for each agent.
        num_steps: T, steps in an episode.
        low: lowest setting of a dial.
        high: highest setting of a dial.

    Raises:
        ValueError: in `step`, if a dial is set beyond its scale.
    """

    metadata = {"name": "dials", "render_modes": []}

    def __init__(
        self,
        num_agents: int = 1,
        num_dials: int = 2,
        num_steps: int = 10,
        low: float = 2.0,
        high: float = 10.0,
    ) -> None:
        agents = [f"agent_{i}" for i in range(num_agents)]
        self._dials = spaces.Box(low, high, (num_dials,), np.float32)
        super().__init__(
            dict.fromkeys(agents, spaces.Box(0.0, 1.0, (num_dials,), np.float32)),
            dict.fromkeys(agents, self._dials),
            num_steps=num_steps,
        )
        self._wishes: dict[str, Any] = {}

    def _begin(self) -> None:
        self._wish()

    def _play(self, actions: dict[str, Any]) -> dict[str, float]:
        box = self._dials
        rewards = {}
        for agent in self.agents:
            setting = np.asarray(actions[agent], np.float32)
            if not box.contains(setting):
                raise ValueError(f"{agent} sets its dials to {setting}, beyond {box}")
            position = (setting - box.low) / (box.high - box.low)
            rewards[agent] = 1.0 - 2.0 * float(np.abs(position - self._wishes[agent]).mean())
        self._wish()
        return rewards

    def _observe(self) -> dict[str, Any]:
        return dict(self._wishes)

    def _wish(self) -> None:
        shape = self._dials.shape
        self._wishes = {
            agent: self._rng.random(shape, dtype=np.float32) for agent in self.possible_agents
        }
