"""A PettingZoo ParallelEnv whose agents come back, in the form of RLlib's dicts by agent."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from muxrl.client.adapters.adapted_env import read_step
from muxrl.client.adapters.places import ALL


class ParallelDicts:
    """Says in `__all__` that an episode is over, where PettingZoo has no agents left.

    Args:
        env: a `pettingzoo.ParallelEnv`, or whatever behaves like one.
    """

    def __init__(self, env: Any) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        if name in ("get_observation_space", "get_action_space"):
            name = name.removeprefix("get_")
        return getattr(self._env, name)

    def reset(self, **kwargs: Any) -> Any:
        """As the environment's; only who is in ``agents`` acts."""
        given = self._env.reset(**kwargs)
        if isinstance(given, tuple) and isinstance(given[0], Mapping):
            there = set(self._env.agents)
            return {a: seen for a, seen in given[0].items() if a in there}, *given[1:]
        return given

    def step(self, actions: Mapping[Hashable, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """As the environment's; who has gone without a flag has terminated."""
        given, rewards, terminations, truncations, infos = read_step(
            self._env.step(actions), is_by_agent=True
        )
        left = set(self._env.agents)
        gone = {a: True for a in actions if a not in left and not truncations.get(a)}
        given = {a: seen for a, seen in given.items() if a in left or a in actions}
        return given, rewards, {**terminations, **gone, ALL: not left}, truncations, infos
