"""The recall game: a cue is shown at the start and asked for at the end.

Made for this project, as the smallest task that needs memory, with exact bounds. At step 0 agent i
is shown a cue drawn uniformly from K, then nothing for some steps; at the last step it is asked,
and paid 1 if it answers with the action of the cue's number. Earlier actions are not paid. At
the question all episodes look alike, so without memory nothing is better than one fixed answer:

    random, or without memory   1 / K
    oracle                      1
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from muxrl.experiments.simulations.parallel_game import ParallelGame


def memoryless_return(num_cues: int = 4) -> float:
    """Returns an agent's best expected return without memory, which random actions reach, too."""
    return 1.0 / num_cues


def oracle_return() -> float:
    """Returns an agent's best return."""
    return 1.0


class RecallGame(ParallelGame):
    """Observation: one-hot of the cue [K], zeros after step 0, then 1 if this is the question.

    Actions are the K cues. The game ends with the answer, so agents are terminated.

    Args:
        num_agents: N.
        num_cues: K.
        delay: steps between the cue and the question.
    """

    metadata = {"name": "recall_game", "render_modes": []}
    is_cut = False

    def __init__(self, num_agents: int = 1, num_cues: int = 4, delay: int = 3) -> None:
        agents = [f"agent_{i}" for i in range(num_agents)]
        super().__init__(
            dict.fromkeys(agents, spaces.Box(0.0, 1.0, (num_cues + 1,), np.float32)),
            dict.fromkeys(agents, spaces.Discrete(num_cues)),
            num_steps=delay + 2,
        )
        self._num_cues = num_cues
        self._question_t = delay + 1
        self._cues: dict[str, int] = {}

    def _begin(self) -> None:
        self._cues = {agent: int(self._rng.integers(self._num_cues)) for agent in self.agents}

    def _play(self, actions: dict[str, Any]) -> dict[str, float]:
        is_asked = self._t == self._question_t
        return {
            agent: float(is_asked and int(actions[agent]) == self._cues[agent])
            for agent in self.agents
        }

    def _observe(self) -> dict[str, Any]:
        observations = {}
        for agent, cue in self._cues.items():
            observation = np.zeros(self._num_cues + 1, np.float32)
            if self._t == 0:
                observation[cue] = 1.0
            observation[-1] = self._t == self._question_t
            observations[agent] = observation
        return observations
