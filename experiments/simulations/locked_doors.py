"""Locked doors: only the action mask shows what an agent may do.

Made for this project, as the smallest task in which action masks matter, with exact bounds. In
each of T steps every agent stands before K doors and goes through one. Door i pays ``i / (K - 1)``.
Each door is open with probability 1/2, and at least one is open. An agent that walks into a locked
door pays 1 and is terminated; with `is_strict` the simulation raises instead.

The right answer, the best open door, is simple, but cannot be learned without the mask. An agent's
return, with K = 4 and T = 10:

    random among the open ones   T / 2                                           = 5
    best open door               T * sum_i i / (K-1) * 2^-(K-i) / (1 - 2^-K)     = 7.5556
    always the best door         r * (1 + q + ... + q^(T-1)),   q = 2^(K-1) / (2^K - 1) the chance
                                 that it is open, r = q - (1 - q)                = 0.1426
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from muxrl.experiments.simulations.parallel_game import ParallelGame, Step


def random_return(num_steps: int = 10) -> float:
    """Returns an agent's expected return if it goes through an open door drawn uniformly."""
    return num_steps / 2


def oracle_return(num_doors: int = 4, num_steps: int = 10) -> float:
    """Returns an agent's best expected return."""
    chance = [2.0 ** (i - num_doors) for i in range(num_doors)]
    prize = sum(i / (num_doors - 1) * p for i, p in enumerate(chance))
    return num_steps * prize / (1 - 2.0**-num_doors)


def blind_return(num_doors: int = 4, num_steps: int = 10) -> float:
    """Returns the expected return of an agent that always tries the door that pays most."""
    is_open = 2.0 ** (num_doors - 1) / (2.0**num_doors - 1)
    return (2 * is_open - 1) * sum(is_open**t for t in range(num_steps))


class LockedDoors(ParallelGame):
    """Observation: ``observation``, one-hot of the agent [N], and ``action_mask`` [K]; K actions.

    Without masks the observation is the one-hot alone. The state is which doors are open, [N * K].
    The time limit truncates.

    Args:
        num_agents: N.
        num_doors: K.
        num_steps: T, steps in an episode.
        is_strict: whether a locked door raises instead of ending the agent's game.
        has_masks: whether agents see which doors are open.
    """

    metadata = {"name": "locked_doors", "render_modes": []}

    def __init__(
        self,
        num_agents: int = 2,
        num_doors: int = 4,
        num_steps: int = 10,
        is_strict: bool = False,
        has_masks: bool = True,
    ) -> None:
        agents = [f"agent_{i}" for i in range(num_agents)]
        one_hot = spaces.Box(0.0, 1.0, (num_agents,), np.float32)
        mask = spaces.Box(0, 1, (num_doors,), np.int8)
        seen: spaces.Space[Any] = one_hot
        if has_masks:
            seen = spaces.Dict({"observation": one_hot, "action_mask": mask})
        super().__init__(
            dict.fromkeys(agents, seen),
            dict.fromkeys(agents, spaces.Discrete(num_doors)),
            spaces.Box(0.0, 1.0, (num_agents * num_doors,), np.float32),
            num_steps,
        )
        self._num_doors = num_doors
        self._is_strict = is_strict
        self._has_masks = has_masks
        self._open = np.ones((num_agents, num_doors), np.int8)

    def _begin(self) -> None:
        self._draw()

    def step(self, actions: dict[str, Any]) -> Step:
        """Moves the agents through their doors.

        Raises:
            ValueError: with `is_strict`, a door was locked.
        """
        rewards, terminations = {}, {}
        for agent in self.agents:
            door = int(actions[agent])
            is_open = bool(self._open[self.possible_agents.index(agent), door])
            if self._is_strict and not is_open:
                raise ValueError(f"{agent} walked into door {door}, which is locked")
            rewards[agent] = door / (self._num_doors - 1) if is_open else -1.0
            terminations[agent] = not is_open
        acted = self.agents
        self._t += 1
        is_over = self._t == self._num_steps
        self._draw()
        observations = self._observe()
        self.agents = [a for a in acted if not terminations[a] and not is_over]
        return (
            observations,
            rewards,
            terminations,
            {agent: is_over and not terminations[agent] for agent in acted},
            {agent: {} for agent in acted},
        )

    def state(self) -> np.ndarray:
        """Returns which doors are open, float32 [N * K]."""
        return self._open.ravel().astype(np.float32)

    def _draw(self) -> None:
        shape = self._open.shape
        self._open = self._rng.integers(2, size=shape, dtype=np.int8)
        while not self._open.any(axis=1).all():  # uniform among draws with an open door
            closed = ~self._open.any(axis=1)
            self._open[closed] = self._rng.integers(2, size=shape, dtype=np.int8)[closed]

    def _observe(self) -> dict[str, Any]:
        eye = np.eye(len(self.possible_agents), dtype=np.float32)
        rows = {agent: self.possible_agents.index(agent) for agent in self.agents}
        if not self._has_masks:
            return {agent: eye[row] for agent, row in rows.items()}
        return {
            agent: {"observation": eye[row], "action_mask": self._open[row].copy()}
            for agent, row in rows.items()
        }
