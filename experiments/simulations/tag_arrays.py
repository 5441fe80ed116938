"""mpe2's `simple_tag_v3` with discrete actions, on arrays instead of objects.

It is number for number the same game (`tests/experiments/test_tag_arrays.py` plays both side by
side) in a tenth of the time. With mpe2's game, a study of many runs spends most of its time on the
simulation.

The physics are those of the particle environments (Lowe et al. 2017, `mpe2._mpe_utils.core.World`):
each agent's own force, a soft contact force between colliding bodies, damping, and a speed limit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from muxrl.experiments.simulations.parallel_game import ParallelGame

Floats = NDArray[np.float64]

_DT = 0.1
_DAMPING = 0.25
_CONTACT_FORCE = 1e2
_CONTACT_MARGIN = 1e-3
_MOVES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], np.float64)
# Size, acceleration and highest speed: of an adversary, of a good agent.
_SIZE = (0.075, 0.05)
_ACCELERATION = (3.0, 4.0)
_MAX_SPEED = (1.0, 1.3)
_OBSTACLE_SIZE = 0.2
_CATCH = 10.0


class SimpleTag(ParallelGame):
    """Agents ``adversary_0 ..`` and ``agent_0 ..``.

    Observation, Box float32: own velocity, own position, then the relative positions of obstacles
    and other agents, then the velocities of the other good agents; two numbers each.

    Every adversary is paid 10 for each touch of any adversary and any good agent. A good agent
    pays 10 for every adversary that touches it, and pays for being near the edge or beyond it.

    Args:
        num_good: good agents.
        num_adversaries: agents on the other side.
        num_obstacles: obstacles in the way.
        max_cycles: steps in an episode, which ends by truncation.
    """

    metadata = {"name": "simple_tag_v3", "render_modes": []}

    def __init__(
        self,
        num_good: int = 1,
        num_adversaries: int = 3,
        num_obstacles: int = 2,
        max_cycles: int = 25,
    ) -> None:
        if num_good < 1 or num_adversaries < 1 or num_obstacles < 0 or max_cycles < 1:
            raise ValueError(
                "SimpleTag needs a good agent, an adversary and a step at least, got "
                f"{num_good}, {num_adversaries}, {num_obstacles} obstacles, {max_cycles}"
            )
        n = num_adversaries + num_good
        names = [f"adversary_{i}" for i in range(num_adversaries)]
        names += [f"agent_{i}" for i in range(num_good)]
        is_good = np.arange(n) >= num_adversaries
        side = is_good.astype(int)
        self._num_adversaries = num_adversaries
        self._acceleration = np.array(_ACCELERATION)[side, None]
        self._max_speed = np.array(_MAX_SPEED)[side]
        sizes = np.concatenate([np.array(_SIZE)[side], np.full(num_obstacles, _OBSTACLE_SIZE)])
        self._catch_distance = _SIZE[0] + _SIZE[1]
        # All pairs of bodies of which at least one can move, and in which direction each is pushed.
        first, second = np.triu_indices(n + num_obstacles, k=1)
        can_move = first < n
        self._first, self._second = first[can_move], second[can_move]
        self._touching_distance = sizes[self._first] + sizes[self._second]
        bodies = np.arange(n)[:, None]
        self._pushes = (bodies == self._first) * 1.0 - (bodies == self._second) * 1.0
        self._minuend, self._subtrahend, self._ends = _layout(is_good, num_obstacles)
        # Positions of agents and obstacles, velocities of agents, and a zero. All that agents see
        # is a difference of two of these rows.
        self._rows = np.zeros((n + num_obstacles + n + 1, 2))
        self._bodies = self._rows[: n + num_obstacles]
        self._agents = self._rows[:n]
        self._velocities = self._rows[n + num_obstacles : -1]
        sizes_seen = np.diff(self._ends, prepend=0) * 2
        super().__init__(
            {
                name: spaces.Box(-np.inf, np.inf, (size,), np.float32)
                for name, size in zip(names, sizes_seen.tolist(), strict=True)
            },
            {name: spaces.Discrete(len(_MOVES)) for name in names},
            spaces.Box(-np.inf, np.inf, (int(sizes_seen.sum()),), np.float32),
            num_steps=max_cycles,
        )

    def state(self) -> NDArray[np.float32]:
        """Returns all observations in a row."""
        return self._seen().reshape(-1)

    def _begin(self) -> None:
        n = len(self._agents)
        self._agents[:] = self._rng.uniform(-1.0, 1.0, (n, 2))
        self._bodies[n:] = self._rng.uniform(-0.9, 0.9, (len(self._bodies) - n, 2))
        self._velocities[:] = 0.0

    def _play(self, actions: dict[str, Any]) -> dict[str, float]:
        chosen = [int(actions[agent]) for agent in self.agents]
        force = _MOVES[chosen] * self._acceleration + self._pushes @ self._contact_forces()
        self._agents += self._velocities * _DT
        velocities = self._velocities * (1.0 - _DAMPING) + force * _DT
        speed = np.sqrt(np.square(velocities).sum(axis=1))
        too_fast = speed > self._max_speed
        if too_fast.any():
            velocities[too_fast] *= (self._max_speed[too_fast] / speed[too_fast])[:, None]
        self._velocities[:] = velocities
        return self._pay()

    def _contact_forces(self) -> Floats:
        """Returns the force that pushes the first body of each pair away from the second."""
        apart = self._bodies[self._first] - self._bodies[self._second]
        distance = np.sqrt(np.square(apart).sum(axis=1))
        depth = np.logaddexp(0.0, (self._touching_distance - distance) / _CONTACT_MARGIN)
        strength = _CONTACT_FORCE * _CONTACT_MARGIN * depth / distance
        forces: Floats = apart * strength[:, None]
        return forces

    def _pay(self) -> dict[str, float]:
        adversaries, good = np.split(self._agents, [self._num_adversaries])
        distance = np.sqrt(np.square(adversaries[:, None] - good[None]).sum(axis=2))
        touches = (distance < self._catch_distance).sum(axis=0).tolist()
        pay = [_CATCH * sum(touches)] * len(adversaries)
        for count, (x, y) in zip(touches, np.abs(good).tolist(), strict=True):
            pay.append(-_CATCH * count - _edge(x) - _edge(y))
        return dict(zip(self.agents, pay, strict=True))

    def _seen(self) -> NDArray[np.float32]:
        return (self._rows[self._minuend] - self._rows[self._subtrahend]).astype(np.float32)

    def _observe(self) -> dict[str, Any]:
        pieces = np.split(self._seen(), self._ends[:-1])
        return {
            name: piece.reshape(-1)
            for name, piece in zip(self.possible_agents, pieces, strict=True)
        }


def _edge(x: float) -> float:
    """Returns the price of being at |x| = `x`."""
    if x < 0.9:
        return 0.0
    if x < 1.0:
        return (x - 0.9) * 10.0
    return float(min(np.exp(2.0 * x - 2.0), 10.0))


def _layout(
    is_good: NDArray[np.bool_], num_obstacles: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Returns all observations as differences of rows (minuend, subtrahend), and where each ends.

    These are rows of `SimpleTag._rows`.
    """
    n = len(is_good)
    velocity, zero = n + num_obstacles, n + num_obstacles + n
    minuend: list[int] = []
    subtrahend: list[int] = []
    ends: list[int] = []
    for i in range(n):
        others = [j for j in range(n) if j != i]
        places = [*range(n, n + num_obstacles), *others]
        fleeing = [velocity + j for j in others if is_good[j]]
        minuend += [velocity + i, i, *places, *fleeing]
        subtrahend += [zero, zero, *[i] * len(places), *[zero] * len(fleeing)]
        ends.append(len(minuend))
    return np.array(minuend), np.array(subtrahend), np.array(ends)
