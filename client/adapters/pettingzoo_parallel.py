"""A PettingZoo ParallelEnv as a `Simulation`: all live agents act at once.

https://pettingzoo.farama.org/api/parallel/
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.simulation import SimulationError, StepResult, wrong_actions
from muxrl.client.adapters.translation import Agents, flat_state, space_lookup, state_size_of


class PettingZooParallel:
    """A step is one action of every live agent.

    Args:
        env: a `pettingzoo.ParallelEnv`, or whatever behaves like one.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._agents = Agents(
            env.possible_agents,
            space_lookup(env, "observation_space", "observation_spaces"),
            space_lookup(env, "action_space", "action_spaces"),
        )
        self.possible_agents = self._agents.possible
        self.observation_spaces = self._agents.observation_spaces
        self.action_spaces = self._agents.action_spaces
        self.state_size = state_size_of(env)
        self._live: dict[Hashable, str] = {}
        self._finished: set[Hashable] = set()
        self._acting: dict[str, Hashable] = {}  # in the environment's order
        self._is_closed = False

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """See `Simulation.reset`."""
        given, infos = self._env.reset(seed=seed)
        names, readers = self._agents.names, self._agents.readers
        self._live = {agent: names[agent] for agent in given}
        self._finished = set()
        self._acting = {name: agent for agent, name in self._live.items()}
        observations = {names[agent]: readers[agent](value) for agent, value in given.items()}
        return observations, self._agents.infos(infos)

    def step(self, actions: dict[str, Any]) -> StepResult:
        """See `Simulation.step`."""
        acting, live, finished = self._acting, self._live, self._finished
        names, readers, writers = self._agents.names, self._agents.readers, self._agents.writers
        if not acting or actions.keys() != acting.keys():
            raise wrong_actions(acting, actions)
        given, given_rewards, terminateds, truncateds, infos = self._env.step(
            {agent: writers[agent](actions[name]) for name, agent in acting.items()}
        )
        terminations = {
            live[agent]: True for agent, is_done in terminateds.items() if is_done and agent in live
        }
        truncations = {
            live[agent]: True
            for agent, is_done in truncateds.items()
            if is_done and agent in live and live[agent] not in terminations
        }
        remaining = len(live) - len(terminations) - len(truncations)
        if len(self._env.agents) != remaining:
            still_there = set(self._env.agents)
            for agent, name in live.items():
                # Dropped without a flag: nothing follows it, so it has terminated. Agents
                # that the environment forgot to drop are done by their flags.
                if agent not in still_there and name not in truncations:
                    terminations[name] = True

        observations: dict[str, Any] = {}
        final_observations: dict[str, Any] = {}
        for agent, value in given.items():
            name = names[agent]
            if name in terminations or name in truncations:
                final_observations[name] = readers[agent](value)
            elif agent not in finished:
                observations[name] = readers[agent](value)

        if terminations or truncations:
            for agent in [
                agent for agent, name in live.items() if name in terminations or name in truncations
            ]:
                del live[agent]
                finished.add(agent)
        if observations.keys() != acting.keys():
            self._acting = {names[agent]: agent for agent in given if names[agent] in observations}
            live.update((agent, name) for name, agent in self._acting.items())
            if live and not observations:
                raise SimulationError(
                    f"the environment gave no observation to its live agents "
                    f"{list(live.values())}, so nobody could act; step() must observe every "
                    "agent that is left in env.agents"
                )
        return StepResult(
            observations,
            {names[agent]: float(reward) for agent, reward in given_rewards.items()},
            terminations,
            truncations,
            final_observations,
            self._agents.infos(infos),
            not live,
        )

    def state(self) -> NDArray[np.float32] | None:
        """See `Simulation.state`."""
        return flat_state(self._env, self.state_size)

    def close(self) -> None:
        """See `Simulation.close`."""
        if not self._is_closed:
            self._is_closed = True
            self._env.close()
