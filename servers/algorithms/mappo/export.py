"""MAPPO's actor as a graph to export; the critic and its state stay behind."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from muxrl.servers.agents.keys import AGENT_ID, OBS
from muxrl.servers.config import ServerPlan
from muxrl.servers.export import graph
from muxrl.servers.export.ports import Port, one_hot


class ActorGraph(graph.PolicyGraph):
    """With an input ``agent_id`` where the actor tells the agents that share it apart."""

    def more_inputs(self, plan: ServerPlan) -> list[Port]:
        if AGENT_ID not in self.module.actor_keys:
            return []
        for agent_id in self.agents:
            group = plan.agents[agent_id].group
            view = tuple(plan.agents) if group is None else plan.groups[group]
            self.agents[agent_id] = view.index(agent_id)
        return [Port(AGENT_ID, (), "int64")]

    def observe(self, given: dict[str, Tensor]) -> Any:
        seen = super().observe(given)
        seen = seen if isinstance(seen, dict) else {OBS: seen}
        if AGENT_ID in given:
            num_agents = self.module.observation_space[AGENT_ID].shape[0]
            seen[AGENT_ID] = one_hot(given[AGENT_ID], num_agents)
        return seen
