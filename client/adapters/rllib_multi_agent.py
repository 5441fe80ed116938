"""Adapts RLlib's MultiAgentEnv: agents that are observed act next.

https://docs.ray.io/en/latest/rllib/multi-agent-envs.html
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from muxrl.client.adapters.agent_spaces import space_lookups
from muxrl.client.adapters.dict_env import DictEnv, Respawn
from muxrl.protocol.spaces import kind_of


class RLlibMultiAgent(DictEnv):
    """A MultiAgentEnv as a `Simulation`.

    No agent need be observed at first; an observation of None counts as no observation.

    Args:
        env: a `ray.rllib.env.multi_agent_env.MultiAgentEnv`, or a `gymnasium.Env` for which
            `has_dicts_by_agent` is true. A method `state()`, as in PettingZoo, gives the global
            state.
        respawn: how agents come back after their end.
    """

    skips_none = True

    def __init__(self, env: Any, respawn: Respawn = "refuse") -> None:
        if has_dicts_by_agent(env):
            ids = list(env.observation_space.spaces)
            spaces = env.observation_space.spaces.get, env.action_space.spaces.get
        else:
            ids = _agent_ids(env)
            spaces = space_lookups(env, "get_")
        super().__init__(env, ids, spaces, respawn=respawn)


def has_dicts_by_agent(env: Any) -> bool:
    """Whether a Gymnasium environment's spaces are two Dicts with the same keys, its agents.

    MetaDrive and mobile-env step their agents together in this way, in dicts like RLlib's. A single
    agent whose observation and action have parts of the same names looks the same; such an
    environment has to rename one part.
    """
    if "MultiAgentEnv" in {base.__name__ for base in type(env).__mro__}:
        return False
    observed: Any = getattr(env, "observation_space", None)
    acted: Any = getattr(env, "action_space", None)
    are_dicts = kind_of(observed) == kind_of(acted) == "Dict"
    return are_dicts and bool(observed.keys() == acted.keys())


def _agent_ids(env: Any) -> list[Hashable]:
    """Returns the ids of all agents; older RLlib environments have them in other attributes."""
    for name in ("possible_agents", "agents", "_agent_ids", "observation_spaces"):
        ids = getattr(env, name, None)
        if ids:
            return sorted(ids, key=str) if isinstance(ids, set) else list(ids)
    return []
