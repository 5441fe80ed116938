"""Adapts VMAS, and simulators like it: steps of torch tensors, with agents in a list.

https://github.com/proroklab/VectorizedMultiAgentSimulator
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from muxrl.client.adapters.simulation import SimulationError


class VmasEnv:
    """A VMAS environment in the form that `AutoresetEnv` expects; an agent's id is its name.

    Args:
        env: what ``vmas.make_env`` returns without a wrapper.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self.num_envs = int(env.num_envs)
        self.possible_agents = [str(agent.name) for agent in env.agents]
        self.observation_spaces = self._named(env.observation_space)
        self.action_spaces = self._named(env.action_space)
        if hasattr(env, "terminated_truncated"):
            env.terminated_truncated = True  # one flag for both hides what to bootstrap

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Resets all copies, or those for which ``options["reset_mask"]`` is True."""
        options = dict(options or {})
        some = options.pop("reset_mask", None)
        if options:
            raise SimulationError(
                "VMAS resets without options, so simulation.parameters cannot be set"
            )
        if some is None:
            return self._named(self._env.reset(seed=seed)), {}
        for copy in np.flatnonzero(some).tolist():
            self._env.reset_at(copy, return_observations=False)
        seen = self._env.get_from_scenario(
            get_observations=True, get_rewards=False, get_infos=False, get_dones=False
        )[0]
        return self._named(seen), {}

    def step(self, actions: Mapping[str, Any]) -> Any:
        """Steps all copies, with a row of actions for each."""
        import torch  # installed, as the environment needs it

        device = getattr(self._env, "device", "cpu")
        given = self._env.step(
            [torch.as_tensor(np.array(actions[a]), device=device) for a in self.possible_agents]
        )
        if len(given) != 5:
            raise SimulationError(
                "step() must return observations, rewards, terminated, truncated and infos, as "
                "VMAS does from version 1.4 on"
            )
        seen, rewards, terminated, truncated, infos = given
        named = self._named(infos) if infos else {}
        return self._named(seen), self._named(rewards), terminated, truncated, named

    def render(self) -> Any:
        """Returns the picture of the first copy."""
        return self._env.render(mode="rgb_array")

    def _named(self, given: Any) -> dict[str, Any]:
        given = getattr(given, "spaces", given)
        ordered = given.values() if isinstance(given, Mapping) else given
        return dict(zip(self.possible_agents, ordered, strict=True))
