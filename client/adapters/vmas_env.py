"""VMAS, and simulators built like it: a batched step over torch tensors, agents in a list.

https://github.com/proroklab/VectorizedMultiAgentSimulator
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.autoreset import as_rows
from muxrl.client.adapters.simulation import SimulationError
from muxrl.client.adapters.vector_simulation import Rows, VectorStep, copied, row
from muxrl.protocol.spaces import from_gymnasium


class VmasEnv:
    """A VMAS environment as a `VectorSimulation`; an agent's id is its name.

    Args:
        env: what ``vmas.make_env`` returns without a wrapper.
    """

    state_size: int | None = None

    def __init__(self, env: Any) -> None:
        self._env = env
        self.num_copies = int(env.num_envs)
        self.possible_agents = tuple(str(agent.name) for agent in env.agents)
        self.observation_spaces, self.action_spaces = (
            {
                name: from_gymnasium(spaces[name if hasattr(spaces, "keys") else i])
                for i, name in enumerate(self.possible_agents)
            }
            for spaces in (env.observation_space, env.action_space)
        )
        if hasattr(env, "terminated_truncated"):
            env.terminated_truncated = True  # one flag for both would have no value to bootstrap

    def reset(self, seed: int | None = None) -> dict[str, Rows]:
        """See `VectorSimulation.reset`."""
        return self._named(self._env.reset(seed=seed))

    def ask_options(self, options_of: Callable[[int], Mapping[str, float]]) -> None:
        """See `VectorSimulation.ask_options`: they cannot be told any."""
        raise SimulationError("VMAS resets without options, so simulation.parameters cannot be set")

    def step(self, actions: Mapping[str, Rows]) -> VectorStep:
        """See `VectorSimulation.step`."""
        import torch  # it is there: the environment is made of it

        device = getattr(self._env, "device", "cpu")
        given = self._env.step(
            [torch.as_tensor(np.array(actions[a]), device=device) for a in self.possible_agents]
        )
        if len(given) != 5:
            raise SimulationError(
                "its step() has to return observations, rewards, terminated, truncated and infos; "
                "VMAS does from 1.4 on"
            )
        observations = self._named(given[0])
        terminated = as_rows(given[2]).astype(bool)
        truncated = as_rows(given[3]).astype(bool) & ~terminated
        over = np.flatnonzero(terminated | truncated).tolist()
        rewards = {a: one.reshape(self.num_copies) for a, one in self._named(given[1]).items()}
        infos = self._named(given[4]) if given[4] else {}
        finals: dict[int, dict[str, Any]] = {}
        if over:  # a reset may write into what the step returned
            rewards, infos = copied(rewards), copied(infos)
            finals = {copy: copied(row(observations, copy)) for copy in over}
            for copy in over:
                self._env.reset_at(copy, return_observations=False)
            observations = self._named(
                self._env.get_from_scenario(
                    get_observations=True, get_rewards=False, get_infos=False, get_dones=False
                )[0]
            )
        return VectorStep(
            observations,
            rewards,
            terminated,
            truncated,
            finals,
            np.ones(self.num_copies, bool),
            infos,
            {},
        )

    def state(self) -> NDArray[np.float32] | None:
        """Returns None: VMAS has no global state."""
        return None

    def render(self) -> Any:
        """Returns a picture of the first copy."""
        return self._env.render(mode="rgb_array")

    def close(self) -> None:
        """Does nothing: VMAS holds nothing open."""

    def _named(self, given: Any) -> dict[str, Rows]:
        ordered = given.values() if isinstance(given, Mapping) else given
        return {a: as_rows(one) for a, one in zip(self.possible_agents, ordered, strict=True)}
