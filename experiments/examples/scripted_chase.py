"""Scripted predators and prey for `torus_chase`: a yardstick, and an example of SCRIPTED.

    servers:
      fleeing:
        algorithm: SCRIPTED
        agents: ["prey_*"]
        settings:
          policy: muxrl.experiments.examples.scripted_chase:flee
          kwargs: {num_opponents: 3}

Both look one step ahead and know nothing of their partners. Ties are broken by the seed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from muxrl.experiments.simulations.torus_chase import MOVES

Policy = Callable[[NDArray[np.float32]], int]


def flee(
    agent_id: str,
    observation_space: spaces.Space,
    action_space: spaces.Space,
    seed: int,
    *,
    num_opponents: int = 3,
    size: int = 7,
) -> Policy:
    """Returns a prey that moves where the nearest predator is farthest away.

    Args:
        agent_id: of the agent.
        observation_space: of the agent; see `TorusChase`.
        action_space: of the agent.
        seed: new in every episode.
        num_opponents: number of predators, whose positions come first in the observation.
        size: of the torus.
    """
    return _one_step_ahead(seed, num_opponents, size, towards=-1)


def pursue(
    agent_id: str,
    observation_space: spaces.Space,
    action_space: spaces.Space,
    seed: int,
    *,
    num_opponents: int = 2,
    size: int = 7,
) -> Policy:
    """Returns a predator that moves towards the nearest prey; arguments as for `flee`."""
    return _one_step_ahead(seed, num_opponents, size, towards=1)


def _one_step_ahead(seed: int, num_opponents: int, size: int, towards: int) -> Policy:
    rng = np.random.default_rng(seed)
    moves = np.array(MOVES)[:, None]
    half = size // 2

    def act(observation: NDArray[np.float32]) -> int:
        cells = np.rint(observation[: 2 * num_opponents].reshape(-1, 2) * half)
        after = (cells - moves + half) % size - half  # of each opponent, after each of our moves
        nearest = towards * np.abs(after).sum(axis=2).min(axis=1)
        return int(rng.choice(np.flatnonzero(nearest == nearest.min())))

    return act
