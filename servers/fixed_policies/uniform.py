"""The random policy: every available action is equally likely."""

from __future__ import annotations

import numpy as np

from muxrl.protocol.spaces import sample_action
from muxrl.servers.config import ServerPlan
from muxrl.servers.fixed_policies.plain import Policy


class Uniform:
    """Makes the policies of one server's agents.

    Args:
        plan: the server.
    """

    def __init__(self, plan: ServerPlan) -> None:
        self._spaces = {agent_id: agent.action_space for agent_id, agent in plan.agents.items()}

    def __call__(self, agent_id: str, seed: int) -> Policy:
        space, rng = self._spaces[agent_id], np.random.default_rng(seed)
        return lambda observation: sample_action(space, observation, rng)
