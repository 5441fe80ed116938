"""A PettingZoo ParallelEnv as a `Simulation`: all live agents act at once.

https://pettingzoo.farama.org/api/parallel/
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from muxrl.client.adapters.adapted_env import AdaptedEnv, came_back, plain_reward, space_lookup
from muxrl.client.adapters.simulation import SimulationError, StepResult


class PettingZooParallel(AdaptedEnv):
    """A step is one action of every live agent.

    Args:
        env: a `pettingzoo.ParallelEnv`, or whatever behaves like one.
    """

    speaks_by_agent = True

    def __init__(self, env: Any) -> None:
        super().__init__(
            env,
            getattr(env, "possible_agents", ()),
            space_lookup(env, "observation_space", "observation_spaces"),
            space_lookup(env, "action_space", "action_spaces"),
        )
        self._live: dict[Hashable, str] = {}
        self._finished: set[Hashable] = set()

    def reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """See `Simulation.reset`."""
        given, infos = self._observe_reset(seed, options)
        there = set(self._env.agents)
        acting = [agent for agent in given if agent in there]
        if not acting:
            raise SimulationError(
                f"after reset() env.agents is {list(self._env.agents)} and the observations are of "
                f"{list(given)}, so nobody could act; env.agents has to list who acts"
            )
        self._live = {agent: self._names[agent] for agent in acting}
        self._finished = set()
        return self._begin({agent: given[agent] for agent in acting}, infos)

    def step(self, actions: dict[str, Any]) -> StepResult:
        """See `Simulation.step`."""
        live, finished = self._live, self._finished
        names, readers = self._names, self._readers
        given, given_rewards, terminateds, truncateds, infos = self._step_env(
            self._env_actions(actions)
        )
        terminations: dict[str, bool] = {}
        truncations: dict[str, bool] = {}
        if any(terminateds.values()):
            terminations = {
                live[a]: True for a, is_done in terminateds.items() if is_done and a in live
            }
        if any(truncateds.values()):
            truncations = {
                live[agent]: True
                for agent, is_done in truncateds.items()
                if is_done and agent in live and live[agent] not in terminations
            }
        still_there = self._env.agents
        remaining = len(live) - len(terminations) - len(truncations)
        if len(still_there) != remaining or not all(map(live.__contains__, still_there)):
            still_there = set(still_there)
            for agent, name in live.items():
                # Dropped without a flag: nothing follows it, so it has terminated. Agents
                # that the environment forgot to drop are done by their flags.
                if agent not in still_there and name not in truncations:
                    terminations[name] = True

        observations: dict[str, Any] = {}
        final_observations: dict[str, Any] = {}
        is_plain = given.keys() == live.keys() and not (terminations or truncations)
        if is_plain:  # the usual step, in half the time
            observations = self._read(given)
        for agent, value in () if is_plain else given.items():
            name = names[agent]
            if name in terminations or name in truncations:
                final_observations[name] = readers[agent](value)
            elif agent not in still_there:
                continue  # observed, but not one that acts: of those that have gone, or may come
            elif agent not in finished:
                observations[name] = readers[agent](value)
            elif not (terminateds.get(agent, True) or truncateds.get(agent, True)):
                # Those that are only said to be done once more are not asked again.
                raise came_back(agent)

        if terminations or truncations:
            for agent in [
                agent for agent, name in live.items() if name in terminations or name in truncations
            ]:
                del live[agent]
                finished.add(agent)
        if observations.keys() != self._acting.keys():
            self._acting = {names[agent]: agent for agent in given if names[agent] in observations}
            live.update((agent, name) for name, agent in self._acting.items())
            if live and not observations:
                raise SimulationError(
                    f"the environment gave no observation to its live agents "
                    f"{list(live.values())}, so nobody could act; step() must observe every "
                    "agent that is left in env.agents"
                )
        plain_infos = self._plain_infos(infos)
        self._add_masks(plain_infos, observations, final_observations)
        return StepResult(
            observations,
            {
                names[agent]: reward if type(reward) is float else plain_reward(agent, reward)
                for agent, reward in given_rewards.items()
            },
            terminations,
            truncations,
            final_observations,
            plain_infos,
            not live,
        )
