"""mpe2's `simple_spread_v3`, step for step, at a sixth of its processor time.

Agents have to cover all landmarks, as many as there are agents, without running into each other.
mpe2 moves its entities one at a time through numpy arrays of two numbers and asks each agent in
turn. That takes 0.4 ms a step, so that a study of many runs would mostly wait for it. This is the
same world in plain floats: the same draws from the same seed, the same forces in the same order,
the same rewards.
`tests/experiments/test_spread.py` plays both side by side and compares every number.

With 3 agents and ``local_ratio`` p, an agent's reward in a step is

    r_i = (1 - p) * G + p * C_i,    G = - (sum over landmarks of the nearest agent's distance)
                                    C_i = - (other agents that touch agent i)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from muxrl.experiments.simulations.parallel_game import ParallelGame

NUM_STEPS = 25
_DT, _DAMPING, _SENSITIVITY = 0.1, 0.25, 5.0
_CONTACT_FORCE, _CONTACT_MARGIN = 100.0, 0.001
_REACH = 0.3  # two agents of size 0.15 touch
_FORCES = ((0.0, 0.0), (-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0))  # by action


class Spread(ParallelGame):
    """Observation, Box float32 [6 N]: own velocity and place, the relative places of the landmarks
    and of the other agents (2 numbers each), and zeros in place of messages.

    Actions: stay, left, right, down, up. Episodes are truncated after 25 steps.

    Args:
        N: agents, and landmarks.
        local_ratio: weight of an agent's own collisions against the team's distances.
        max_cycles: steps in an episode.
    """

    metadata = {"name": "simple_spread_v3", "render_modes": []}

    def __init__(self, N: int = 3, local_ratio: float = 0.5, max_cycles: int = NUM_STEPS) -> None:  # noqa: N803
        agents = [f"agent_{i}" for i in range(N)]
        super().__init__(
            dict.fromkeys(agents, spaces.Box(-np.inf, np.inf, (6 * N,), np.float32)),
            {agent: spaces.Discrete(len(_FORCES)) for agent in agents},
            spaces.Box(-np.inf, np.inf, (6 * N * N,), np.float32),
            max_cycles,
        )
        self._num, self._local_ratio = N, local_ratio
        # [agents, then landmarks][x, y], and the agents' velocities.
        self._places: list[list[float]] = [[0.0, 0.0] for _ in range(2 * N)]
        self._velocities: list[list[float]] = [[0.0, 0.0] for _ in range(N)]

    def _begin(self) -> None:
        self._places = self._rng.uniform(-1, 1, (2 * self._num, 2)).tolist()
        self._velocities = [[0.0, 0.0] for _ in self.agents]

    def _play(self, actions: dict[str, Any]) -> dict[str, float]:
        agents = self.agents
        forces = [[_SENSITIVITY * u for u in _FORCES[int(actions[agent])]] for agent in agents]
        self._push_apart(forces)
        for place, velocity, force in zip(self._places, self._velocities, forces, strict=False):
            for axis in (0, 1):
                place[axis] += velocity[axis] * _DT
                velocity[axis] = velocity[axis] * (1 - _DAMPING) + force[axis] * _DT
        return dict(zip(agents, self._rewards(), strict=True))

    def state(self) -> NDArray[np.float32]:
        """Returns all agents' observations in a row, float32 [6 N²]."""
        return np.concatenate(list(self._observe().values()))

    def _push_apart(self, forces: list[list[float]]) -> None:
        """Adds the contact forces between agents: a soft wall at the distance of touch."""
        for a in range(self._num):
            (xa, ya) = self._places[a]
            for b in range(a + 1, self._num):
                dx, dy = xa - self._places[b][0], ya - self._places[b][1]
                distance = math.sqrt(dx * dx + dy * dy)
                push = _CONTACT_FORCE * _softplus((_REACH - distance) / _CONTACT_MARGIN)
                push *= _CONTACT_MARGIN / distance
                forces[a][0] += push * dx
                forces[a][1] += push * dy
                forces[b][0] -= push * dx
                forces[b][1] -= push * dy

    def _rewards(self) -> list[float]:
        places = self._places[: self._num]
        shared = -sum(min(math.dist(p, landmark) for p in places) for landmark in self._landmarks)
        p = self._local_ratio
        collisions = [
            sum(math.dist(place, other) < _REACH for other in places) - 1 for place in places
        ]
        return [(1 - p) * shared - p * count for count in collisions]

    @property
    def _landmarks(self) -> list[list[float]]:
        return self._places[self._num :]

    def _observe(self) -> dict[str, NDArray[np.float32]]:
        places = self._places
        silence = [0.0] * (2 * (self._num - 1))
        observations = {}
        for i, agent in enumerate(self.possible_agents):
            x, y = places[i]
            seen = [*self._velocities[i], x, y]
            for xj, yj in self._landmarks:
                seen += (xj - x, yj - y)
            for j in range(self._num):
                if j != i:
                    seen += (places[j][0] - x, places[j][1] - y)
            observations[agent] = np.array(seen + silence, np.float32)
        return observations


def _softplus(value: float) -> float:
    """Returns ``log(1 + exp(value))`` for any value."""
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))
