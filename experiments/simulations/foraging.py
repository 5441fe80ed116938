"""Level-based foraging (package `lbforaging`) as a PettingZoo ParallelEnv.

Christianos et al. 2020, "Shared Experience Actor-Critic" (arXiv 2006.07169), and Papoudakis et al.
2021 (arXiv 2006.07869). Agents and apples have levels; an apple is eaten when agents around it
load at the same step and their levels add up to its own. In a "-coop" variant with two agents
every apple takes both. Rewards are normalised: an agent gets its share, by level, of the apple's
share of all apples, so that the sum over agents and steps is 1 when nothing is left.

Levels depend on the version: ids ending in -v2 (package 1.x) had agents of levels 1 to 3, those
ending in -v3 (package 2.x, used here) have levels 1 and 2. In both, an apple of a -coop variant
has the sum of its agents' levels.

What this adapter decides: an episode that ends because its 50 steps are over, with apples left, is
*truncated*, so that learners bootstrap; the package calls it done, as if all had been eaten.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import lbforaging  # noqa: F401  (registers its environments with gymnasium)
import numpy as np
from numpy.typing import NDArray

from muxrl.experiments.simulations.parallel_game import ParallelGame, Reset, Step

ORACLE_RETURN = 1.0
"""Sum over agents when all is eaten."""


class Foraging(ParallelGame):
    """Agents ``agent_0 ..``; observation and actions as the package has them.

    Observation, Box float32 [3 * (apples + agents)]: row, column and level of every apple, then of
    every agent, the observing one first; -1, -1, 0 for what is eaten or out of sight. Actions:
    nothing, north, south, west, east, load.

    Args:
        env_id: of the package, such as "Foraging-8x8-2p-2f-coop-v3".
    """

    metadata = {"name": "foraging", "render_modes": []}

    def __init__(self, env_id: str = "Foraging-8x8-2p-2f-coop-v3") -> None:
        # Gymnasium's own wrappers expect one agent and one reward.
        env: Any = gymnasium.make(env_id, disable_env_checker=True)
        self._env = env.unwrapped
        agents = [f"agent_{i}" for i in range(len(self._env.players))]
        super().__init__(
            dict(zip(agents, self._env.observation_space, strict=True)),
            dict(zip(agents, self._env.action_space, strict=True)),
        )

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Sets agents and apples down at random."""
        self.agents = list(self.possible_agents)
        observations, _ = self._env.reset(seed=seed)
        return self._by_agent(observations), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Step:
        """Moves the agents, then lets those that load eat."""
        agents = self.agents
        chosen = [int(actions[agent]) for agent in agents]
        observations, rewards, is_over, _, _ = self._env.step(chosen)
        is_eaten = not self._env.field.any()
        if is_over:
            self.agents = []
        return (
            self._by_agent(observations),
            {agent: float(reward) for agent, reward in zip(agents, rewards, strict=True)},
            dict.fromkeys(agents, is_eaten),
            dict.fromkeys(agents, bool(is_over) and not is_eaten),
            {agent: {} for agent in agents},
        )

    def _by_agent(self, observations: Any) -> dict[str, NDArray[np.float32]]:
        return dict(zip(self.possible_agents, observations, strict=True))
