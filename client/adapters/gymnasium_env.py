"""Adapts Gymnasium environments with one agent, or with several agents in Tuple spaces.

https://gymnasium.farama.org/api/env/

Gymnasium itself has one agent. The multi-robot warehouse (rware), level-based foraging
(lbforaging) and highway-env step several agents together. By their convention, which is also
EPyMARL's (Papoudakis et al. 2021, arXiv 2006.07869), all values come in the order of the agents.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from muxrl.client.adapters.dict_env import DictEnv
from muxrl.client.adapters.raw_values import Five
from muxrl.client.adapters.simulation import COMMON, SimulationError
from muxrl.protocol.spaces import ACTION_MASK_KEY, kind_of

AGENT = "agent"


class GymnasiumEnv(DictEnv):
    """A `gymnasium.Env` with one agent; there is no global state beyond what the agent observes.

    Args:
        env: a `gymnasium.Env`, or an object that behaves like one.
    """

    is_by_agent = False

    def __init__(self, env: Any) -> None:
        spaces = lambda _: env.observation_space, lambda _: env.action_space
        super().__init__(env, [AGENT], spaces, has_state=False)

    def _read_reset(self, seen: Any, infos: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return {AGENT: seen}, {AGENT: infos}

    def _read_step(self, step: Five, live: Mapping[Hashable, Any]) -> Five:
        seen, reward, ended, cut, info = step
        return {AGENT: seen}, {AGENT: reward}, {AGENT: ended}, {AGENT: cut}, {AGENT: info}

    def _step_env(self, actions: dict[Hashable, Any]) -> Any:
        return self._env.step(actions[AGENT])


def has_a_part_for_each_agent(env: Any) -> bool:
    """Whether an environment's spaces are two Tuples (or lists) with equally many parts.

    A single agent that observes and acts in Tuples of the same length looks the same; such an
    environment has to make one of them a Dict.
    """
    observed, acted = (
        _parts(getattr(env, name, None)) for name in ("observation_space", "action_space")
    )
    return bool(observed and acted) and len(observed) == len(acted)


class GymnasiumMultiAgent(DictEnv):
    """A `gymnasium.Env` with several agents, called 'agent_0', 'agent_1', ... in their order.

    Each step takes an action of every agent. Rewards are a sequence with one number for each agent,
    or one number that each of them gets; so are `terminated` and `truncated`. An agent that is done
    before the others does not act any more; the environment still takes a whole tuple of actions,
    in which that agent's last action is repeated. `info` is a dict of the whole episode (`COMMON`),
    whose `action_mask` may have a row for each agent, or a sequence with a dict for each agent.

    Args:
        env: a `gymnasium.Env` for which `has_a_part_for_each_agent` is true.
    """

    is_by_agent = False

    def __init__(self, env: Any) -> None:
        self._actions: dict[Hashable, Any] = {}
        """The last action of every agent, as the environment takes it."""
        parts = _parts(env.observation_space), _parts(env.action_space)
        self._ids = [f"agent_{i}" for i in range(len(parts[0]))]
        observed, acted = (dict(zip(self._ids, spaces, strict=True)) for spaces in parts)
        super().__init__(env, self._ids, (observed.get, acted.get), has_state=False)

    def _read_reset(self, seen: Any, infos: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._by_agent("observations", seen), self._infos(infos)

    def _read_step(self, step: Five, live: Mapping[Hashable, Any]) -> Five:
        seen, rewards, terminated, truncated, info = step
        observed: dict[Any, Any] = self._by_agent("observations", seen)
        return (
            observed if len(live) == len(observed) else {a: observed[a] for a in live},
            self._by_agent("rewards", rewards, or_one=True),
            self._by_agent("terminated", terminated, or_one=True),
            self._by_agent("truncated", truncated, or_one=True),
            self._infos(info),
        )

    def _step_env(self, actions: dict[Hashable, Any]) -> Any:
        self._actions |= actions
        return self._env.step(tuple(self._actions[agent] for agent in self._ids))

    def _infos(self, given: Any) -> dict[str, Any]:
        """Returns the infos by agent and `COMMON`."""
        if not isinstance(given, Mapping):
            return self._by_agent("infos", given)
        infos: dict[str, Any] = {COMMON: given}
        if ACTION_MASK_KEY in given:
            masks = self._by_agent("action masks", given[ACTION_MASK_KEY])
            infos |= {agent: {ACTION_MASK_KEY: mask} for agent, mask in masks.items()}
        return infos

    def _by_agent(self, what: str, given: Any, *, or_one: bool = False) -> dict[str, Any]:
        """Returns values given in the order of the agents by agent.

        Args:
            what: the values' name, for the error.
            given: the values.
            or_one: whether it may be a single value for all agents.

        Raises:
            SimulationError: there is not one value for each agent.
        """
        if or_one and np.ndim(given) == 0 and not isinstance(given, Mapping):
            return dict.fromkeys(self._ids, given)
        num = len(given) if isinstance(given, Sequence | np.ndarray) else None
        if num != len(self._ids):
            came = f"a {type(given).__name__}" + ("" if num is None else f" of {num}")
            num = len(self._ids)
            raise SimulationError(
                f"the environment gave its {what} as {came}; its spaces have {num} parts, one for "
                f"each agent, so a list, tuple or array of {num} values was expected"
            )
        return dict(zip(self._ids, given, strict=True))


def _parts(space: Any) -> Sequence[Any]:
    """Returns the parts of a Tuple, or of the list of spaces that older environments have."""
    if kind_of(space) == "Tuple":
        return tuple(space.spaces)
    return space if isinstance(space, list | tuple) else ()
