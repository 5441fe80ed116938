"""A single-agent Gymnasium environment as a `Simulation` whose one agent is 'agent'.

https://gymnasium.farama.org/api/env/
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from muxrl.client.adapters.dict_env import DictEnv
from muxrl.client.adapters.raw_values import Five

AGENT = "agent"


class GymnasiumEnv(DictEnv):
    """A step is the one agent's action; there is no global state beyond what the agent sees.

    Args:
        env: a `gymnasium.Env`, or whatever behaves like one.
    """

    is_by_agent = False

    def __init__(self, env: Any) -> None:
        spaces = lambda _: env.observation_space, lambda _: env.action_space
        super().__init__(env, [AGENT], spaces, has_state=False)

    def _read_reset(self, seen: Any, infos: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return {AGENT: seen}, {AGENT: infos}

    def _read_step(self, step: Five, live: Mapping[Hashable, Any]) -> Five:
        seen, reward, is_terminated, is_truncated, info = step
        return (
            {AGENT: seen},
            {AGENT: reward},
            {AGENT: is_terminated},
            {AGENT: is_truncated},
            {AGENT: info},
        )

    def _step_env(self, actions: dict[Hashable, Any]) -> Any:
        return self._env.step(actions[AGENT])
