"""Adapts PettingZoo's ParallelEnv: all live agents act at once.

https://pettingzoo.farama.org/api/parallel/
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from muxrl.client.adapters.dict_env import DictEnv, Respawn
from muxrl.client.adapters.places import ALL
from muxrl.client.adapters.raw_values import Five
from muxrl.client.adapters.simulation import SimulationError


class PettingZooParallel(DictEnv):
    """A ParallelEnv as a `Simulation`; a step takes one action of every live agent.

    An agent that disappears from `agents` without a flag has terminated, since nothing follows. An
    agent with a flag is done even if the environment leaves it in `agents`.

    Args:
        env: a `pettingzoo.ParallelEnv`, or an object that behaves like one.
        respawn: how agents come back after their end.
    """

    lists_agents = True

    def __init__(self, env: Any, respawn: Respawn = "refuse") -> None:
        self.skips_none = respawn != "refuse"
        super().__init__(env, respawn=respawn)

    def _read_reset(self, seen: Any, infos: Any) -> tuple[dict[Any, Any], Any]:
        there = set(self._env.agents)
        acting = {agent: value for agent, value in seen.items() if agent in there}
        if not acting and not self._may_return:
            raise SimulationError(
                f"after reset() env.agents is {list(self._env.agents)} and the observations are of "
                f"{list(seen)}, so no agent can act; env.agents must list the agents that act"
            )
        return acting, infos

    def _read_step(self, step: Five, live: Mapping[Hashable, Any]) -> Five:
        seen, rewards, terminateds, truncateds, infos = step
        agents = self._env.agents
        is_usual = len(agents) == len(live) and seen.keys() == live.keys()
        if agents and is_usual and all(map(live.__contains__, agents)):
            return step
        left = set(agents)
        gone = {agent: True for agent in live if agent not in left and not truncateds.get(agent)}
        known = seen if self._may_return else self._agents.names  # unknown ones are refused by name
        seen = {a: v for a, v in seen.items() if a in left or a in live or a not in known}
        return seen, rewards, {**terminateds, **gone, ALL: not left}, truncateds, infos
