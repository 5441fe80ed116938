"""Level-based foraging (package `lbforaging`), a Gymnasium environment of several agents.

Christianos et al. 2020, "Shared Experience Actor-Critic" (arXiv 2006.07169), and Papoudakis et al.
2021 (arXiv 2006.07869). Agents and apples have levels; an apple is eaten when agents around it
load at the same step and their levels add up to its level. In a "-coop" variant with two
agents every apple takes both. Rewards are normalised: an agent gets its share, by level, of the
apple's share of all apples, so that the sum over agents and steps is 1 when nothing is left.

Agents have levels 1 and 2, an apple at most the sum of the agents' levels (in a -coop variant just
this sum). Ids ending in -v2, of the package's early versions, have easier apples: at most one
below the sum.

This wrapper *truncates* an episode whose steps are over with apples left, so that learners
bootstrap; the package calls such an episode done, as if all apples had been eaten.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import lbforaging  # noqa: F401  (registers its environments with gymnasium)

ORACLE_RETURN = 1.0
"""Sum over agents when all apples are eaten."""


class Foraging(gymnasium.Wrapper):
    """Agents ``agent_0 ..``; observations and actions are those of the package.

    Observation, Box float32 [3 * (apples + agents)]: row, column and level of every apple, then of
    every agent, the observing one first; -1, -1, 0 for an apple that is eaten and for anything out
    of sight. Actions: nothing, north, south, west, east, load.

    Args:
        env_id: of the package, such as "Foraging-8x8-2p-2f-coop-v3".
        settings: settings that differ from the id's, as for `gymnasium.make`.
    """

    def __init__(self, env_id: str = "Foraging-8x8-2p-2f-coop-v3", **settings: Any) -> None:
        # Gymnasium's own checker expects one agent and one reward.
        super().__init__(gymnasium.make(env_id, disable_env_checker=True, **settings))

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Moves the agents, then lets agents that load eat."""
        observations, rewards, is_over, is_late, info = self.env.step(action)
        game: Any = self.unwrapped
        is_eaten = not game.field.any()
        return observations, rewards, is_eaten, (is_over or is_late) and not is_eaten, info
