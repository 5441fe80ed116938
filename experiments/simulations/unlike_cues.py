"""The cue game for a team of unlike members: each has its own number of cues and actions.

Made for this project, as the smallest task in which one team holds observations and actions of
different sizes. In each of the T steps member i is shown a cue drawn uniformly from its own K_i and
should answer with the action of the same number. Every member gets the same reward

    r = (number of right answers) / N + bonus * [all N are right]

as in `muxrl.experiments.simulations.cue_game`, where all K_i are alike. Exact bounds of a member's
return, with K = 2, 3, 5 and T = 10, bonus = 1:

    random   T * (sum_i 1/K_i / N + bonus * prod_i 1/K_i) = 10 * (31/90 + 1/30) = 3.7778
    oracle   T * (1 + bonus)                                                    = 20

A server that cut everybody's actions down to the smallest K could not pass
``T * ((1 + 2/3 + 2/5) / 3 + bonus * 2/3 * 2/5)``, 9.5556.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from muxrl.experiments.simulations.parallel_game import ParallelGame

CUES = (2, 3, 5)


def random_return(cues: Sequence[int] = CUES, num_steps: int = 10, bonus: float = 1.0) -> float:
    """Returns each member's expected return if all act uniformly at random."""
    share_right = sum(1 / k for k in cues) / len(cues)
    return num_steps * (share_right + bonus / math.prod(cues))


def oracle_return(num_steps: int = 10, bonus: float = 1.0) -> float:
    """Returns each member's best return."""
    return num_steps * (1 + bonus)


class UnlikeCues(ParallelGame):
    """Member i: observation, one-hot of its cue [K_i]; K_i actions. No global state.

    Args:
        cues: K_i, one for each member.
        num_steps: T, after which the episode is truncated.
        bonus: paid when all are right.
    """

    metadata = {"name": "unlike_cues", "render_modes": []}

    def __init__(self, cues: Sequence[int] = CUES, num_steps: int = 10, bonus: float = 1.0) -> None:
        members = {f"member_{i}": k for i, k in enumerate(cues)}
        super().__init__(
            {a: spaces.Box(0.0, 1.0, (k,), np.float32) for a, k in members.items()},
            {a: spaces.Discrete(k) for a, k in members.items()},
            num_steps=num_steps,
        )
        self._one_hots = [np.eye(k, dtype=np.float32) for k in cues]
        self._num_cues, self._bonus = tuple(cues), bonus
        self._cues = np.zeros((num_steps + 1, len(cues)), np.int64)

    def _begin(self) -> None:
        self._cues = self._rng.integers(self._num_cues, size=self._cues.shape)

    def _play(self, actions: dict[str, Any]) -> dict[str, float]:
        agents, cues = self.agents, self._cues[self._t].tolist()
        num_right = sum(int(actions[agent]) == cue for agent, cue in zip(agents, cues, strict=True))
        reward = num_right / len(cues) + (self._bonus if num_right == len(cues) else 0.0)
        return dict.fromkeys(agents, reward)

    def _observe(self) -> dict[str, NDArray[np.float32]]:
        shown = zip(self.possible_agents, self._one_hots, self._cues[self._t], strict=True)
        return {agent: one_hot[cue] for agent, one_hot, cue in shown}
