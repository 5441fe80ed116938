"""A Gymnasium environment of several agents as a `Simulation`: spaces are Tuples, a part for each.

This is how the multi-robot warehouse (rware), level-based foraging (lbforaging) and highway-env
step their agents together. Gymnasium itself has one agent; their convention, and that of EPyMARL
(Papoudakis et al. 2021, arXiv 2006.07869), is that everything comes in the agents' order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from muxrl.client.adapters.adapted_env import AdaptedEnv, plain_reward
from muxrl.client.adapters.simulation import COMMON, SimulationError, StepResult
from muxrl.protocol.spaces import ACTION_MASK_KEY, kind_of


def has_a_part_for_each_agent(env: Any) -> bool:
    """Whether an environment's spaces are two Tuples (or lists) of as many parts.

    One agent that observes and acts in Tuples of the same length looks the same; it has to make
    one of them a Dict.
    """
    observed, acted = (
        _parts(getattr(env, name, None)) for name in ("observation_space", "action_space")
    )
    return bool(observed and acted) and len(observed) == len(acted)


class GymnasiumMultiAgent(AdaptedEnv):
    """A step is one action of every agent; agents are 'agent_0', 'agent_1', ... in their order.

    Rewards are a sequence with one number for each agent, or one number that each of them gets.
    So are `terminated` and `truncated`. An agent that is done before the others does not act any
    more; such an environment still takes a whole tuple of actions, in which that agent's last one
    stays. `info` is a dict of the whole episode (`COMMON`), whose `action_mask` may have a row for
    each agent, or a sequence of one dict for each.

    Args:
        env: a `gymnasium.Env` of which `has_a_part_for_each_agent` is true.
    """

    def __init__(self, env: Any) -> None:
        observed, acted = _parts(env.observation_space), _parts(env.action_space)
        self._agents = [f"agent_{i}" for i in range(len(acted))]
        super().__init__(
            env,
            self._agents,
            dict(zip(self._agents, observed, strict=True)).get,
            dict(zip(self._agents, acted, strict=True)).get,
            has_state=False,
        )
        self._actions: dict[str, Any] = {}
        """The last action of every agent, as the environment takes it."""
        self._live: set[str] = set()

    def _first_infos(self) -> Mapping[Any, Any]:
        return self._infos(self._observe_reset()[1])

    def reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """See `Simulation.reset`."""
        given, info = self._observe_reset(seed, options)
        self._live = set(self._agents)
        return self._begin(self._by_agent("observations", given), self._infos(info))

    def step(self, actions: dict[str, Any]) -> StepResult:
        """See `Simulation.step`."""
        self._actions |= {str(agent): one for agent, one in self._env_actions(actions).items()}
        joint = tuple(self._actions[agent] for agent in self._agents)
        given, given_rewards, terminated, truncated, info = self._step_env(joint)
        terminations = self._ends("terminated", terminated)
        truncations = self._ends("truncated", truncated).keys() - terminations.keys()
        self._live -= terminations.keys() | truncations

        observations: dict[str, Any] = {}
        final_observations: dict[str, Any] = {}
        for agent, value in self._by_agent("observations", given).items():
            if agent in self._live:
                observations[agent] = self._readers[agent](value)
            elif agent in terminations or agent in truncations:
                final_observations[agent] = self._readers[agent](value)
        self._acting = {agent: agent for agent in observations}
        plain_infos = self._plain_infos(self._infos(info))
        self._add_masks(plain_infos, observations, final_observations)
        rewards = self._by_agent_or_one("rewards", given_rewards)
        return StepResult(
            observations,
            {agent: plain_reward(agent, reward) for agent, reward in rewards.items()},
            terminations,
            dict.fromkeys(sorted(truncations, key=self._agents.index), True),
            final_observations,
            plain_infos,
            not self._live,
        )

    def _ends(self, what: str, flags: Any) -> dict[str, bool]:
        """Returns True for each agent that was in the episode and has its flag set."""
        by_agent = self._by_agent_or_one(what, flags)
        return {agent: True for agent in self._agents if agent in self._live and by_agent[agent]}

    def _infos(self, given: Any) -> dict[str, Any]:
        """Returns the infos by agent and `COMMON`."""
        if not isinstance(given, Mapping):
            return self._by_agent("infos", given)
        infos: dict[str, Any] = {COMMON: given}
        if ACTION_MASK_KEY in given:
            masks = self._by_agent("action masks", given[ACTION_MASK_KEY])
            infos |= {agent: {ACTION_MASK_KEY: mask} for agent, mask in masks.items()}
        return infos

    def _by_agent_or_one(self, what: str, given: Any) -> dict[str, Any]:
        if np.ndim(given) == 0 and not isinstance(given, Mapping):
            return dict.fromkeys(self._agents, given)
        return self._by_agent(what, given)

    def _by_agent(self, what: str, given: Any) -> dict[str, Any]:
        """Returns what came in the agents' order by agent.

        Raises:
            SimulationError: it is no sequence of one for each.
        """
        num = len(given) if isinstance(given, Sequence | np.ndarray) else None
        if num != len(self._agents):
            came = f"a {type(given).__name__}" + ("" if num is None else f" of {num}")
            raise SimulationError(
                f"the environment gave its {what} as {came}; its spaces have {len(self._agents)} "
                "parts, one for each agent, so a list, tuple or array of as many was expected"
            )
        return dict(zip(self._agents, given, strict=True))


def _parts(space: Any) -> Sequence[Any]:
    """Returns the parts of a Tuple, or of a list of spaces as older environments have it."""
    if kind_of(space) == "Tuple":
        return tuple(space.spaces)
    return space if isinstance(space, list | tuple) else ()
