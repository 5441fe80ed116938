"""The cue game: every agent answers its own cue, and the whole team is paid for each answer.

Made for this project, as the smallest task on which a learner in any position gets better
within some thousand env steps, whatever the others do. In each of the T steps agent i is
shown a cue drawn uniformly from K, and should answer with the action of the same number.
Every agent gets the same reward

    r = (number of right answers) / N + bonus * [all N are right]

so all rewards rise when one agent learns, and the bonus is rare until all have learned.
Cues are independent of actions and of each other: the optimum is greedy, and both
bounds are exact. An agent's return, with N=3, K=4, T=10, bonus=1:

    random   T * (1/K + bonus / K**N) = 10 * (1/4 + 1/64) = 2.65625
    oracle   T * (1 + bonus)                              = 20

With m of the N agents right and the others random it is
T * ((m + (N - m)/K) / N + bonus / K**(N - m)); for one learner of three, 5.625.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from muxrl.experiments.simulations.parallel_game import ParallelGame


def expected_return(
    num_right: int, num_agents: int = 3, num_cues: int = 4, num_steps: int = 10, bonus: float = 1.0
) -> float:
    """Returns each agent's expected return if `num_right` answer right and the others randomly."""
    num_random = num_agents - num_right
    share_right = (num_right + num_random / num_cues) / num_agents
    return num_steps * (share_right + bonus / num_cues**num_random)


def random_return(
    num_agents: int = 3, num_cues: int = 4, num_steps: int = 10, bonus: float = 1.0
) -> float:
    """Returns each agent's expected return if all act uniformly at random."""
    return expected_return(0, num_agents, num_cues, num_steps, bonus)


def oracle_return(
    num_agents: int = 3, num_cues: int = 4, num_steps: int = 10, bonus: float = 1.0
) -> float:
    """Returns each agent's best return."""
    return expected_return(num_agents, num_agents, num_cues, num_steps, bonus)


class CueGame(ParallelGame):
    """Observation: one-hot of the agent's cue [K], then of its position [N]; K actions.

    The state is every agent's cue, one-hot, [N * K]. A time limit ends the episode, so
    agents are truncated.

    Args:
        num_agents: N.
        num_cues: K, cues and actions.
        num_steps: T, steps in an episode.
        bonus: paid when all are right.
    """

    metadata = {"name": "cue_game", "render_modes": []}

    def __init__(
        self, num_agents: int = 3, num_cues: int = 4, num_steps: int = 10, bonus: float = 1.0
    ) -> None:
        agents = [f"agent_{i}" for i in range(num_agents)]
        box = spaces.Box(0.0, 1.0, (num_cues + num_agents,), np.float32)
        super().__init__(
            dict.fromkeys(agents, box),
            {agent: spaces.Discrete(num_cues) for agent in agents},
            spaces.Box(0.0, 1.0, (num_agents * num_cues,), np.float32),
            num_steps,
        )
        self._num_cues = num_cues
        self._bonus = bonus
        self._cues = np.zeros((num_steps + 1, num_agents), np.int64)

    def _begin(self) -> None:
        self._cues = self._rng.integers(self._num_cues, size=self._cues.shape)

    def _play(self, actions: dict[str, Any]) -> dict[str, float]:
        cues = self._cues[self._t]
        num_right = sum(
            int(actions[agent]) == cue
            for agent, cue in zip(self.possible_agents, cues.tolist(), strict=True)
        )
        are_all_right = num_right == len(cues)
        reward = num_right / len(cues) + (self._bonus if are_all_right else 0.0)
        return dict.fromkeys(self.agents, reward)

    def state(self) -> NDArray[np.float32]:
        """Returns all agents' cues one-hot, float32 [N * K]."""
        return np.eye(self._num_cues, dtype=np.float32)[self._cues[self._t]].ravel()

    def _observe(self) -> dict[str, Any]:
        cues = np.eye(self._num_cues, dtype=np.float32)[self._cues[self._t]]
        both = np.concatenate([cues, np.eye(len(cues), dtype=np.float32)], axis=1)
        return dict(zip(self.possible_agents, both, strict=True))
