"""A PettingZoo AECEnv as a `Simulation`: one agent acts at a time.

https://pettingzoo.farama.org/api/aec/
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from muxrl.client.adapters.adapted_env import AdaptedEnv, plain_reward, space_lookup
from muxrl.client.adapters.simulation import SimulationError, StepResult


class PettingZooAEC(AdaptedEnv):
    """A step is one agent's action, and goes on until another live agent is to act.

    Done agents, which PettingZoo wants stepped with None, are stepped here. An agent's reward is
    that of `env.last()`: the sum since it last acted, given at its turn or when it is done.

    Args:
        env: a `pettingzoo.AECEnv`, or whatever behaves like one.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(
            env,
            getattr(env, "possible_agents", ()),
            space_lookup(env, "observation_space", "observation_spaces"),
            space_lookup(env, "action_space", "action_spaces"),
        )
        self._live: dict[Hashable, str] = {}
        self._have_acted: set[Hashable] = set()

    def _first_infos(self) -> Mapping[Any, Any]:
        self._reset_env()
        return getattr(self._env, "infos", {})

    def reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """See `Simulation.reset`."""
        self._reset_env(seed, options)
        self._live = {agent: self._names[agent] for agent in self._env.agents}
        self._have_acted = set()
        result = self._until_next_turn()
        self._add_masks(result.infos, result.observations)
        return result.observations, result.infos

    def step(self, actions: dict[str, Any]) -> StepResult:
        """See `Simulation.step`."""
        ((agent, action),) = self._env_actions(actions).items()
        self._env.step(action)
        self._have_acted.add(agent)
        result = self._until_next_turn()
        self._add_masks(result.infos, result.observations, result.final_observations)
        return result

    def _until_next_turn(self) -> StepResult:
        env, names, live = self._env, self._names, self._live
        result = StepResult({}, {}, {}, {}, {}, {}, False)
        while env.agents:
            agent = env.agent_selection
            name = live[agent] = names[agent]
            observation, reward, is_terminated, is_truncated, info = env.last()
            # Before its first action an agent has a reward only if another's move gave it one.
            if reward or agent in self._have_acted:
                result.rewards[name] = plain_reward(agent, reward)
            result.infos[name] = {**info} if type(info) is dict else info
            if not (is_terminated or is_truncated):
                self._acting = {name: agent}
                result.observations[name] = self._readers[agent](observation)
                return result
            self._finish(agent, result, bool(is_terminated))
            if observation is not None:
                result.final_observations[name] = self._readers[agent](observation)
            env.step(None)
            if agent in env.agents:
                raise SimulationError(
                    f"the environment did not remove agent {agent!r}, which is done, when it was "
                    "stepped with None; its step() must call _was_dead_step(action) first"
                )
        # An environment may end by emptying `agents`, without the steps with None.
        unpaid = getattr(env, "_cumulative_rewards", {})
        for agent in list(live):
            result.infos.setdefault(names[agent], getattr(env, "infos", {}).get(agent, {}))
            if agent in unpaid and (unpaid[agent] or agent in self._have_acted):
                result.rewards[names[agent]] = plain_reward(agent, unpaid[agent])
            is_truncated = env.truncations.get(agent, False)
            is_terminated = env.terminations.get(agent, False) or not is_truncated
            self._finish(agent, result, is_terminated)
            if not is_terminated:  # its value is bootstrapped from what it would see next
                result.final_observations[names[agent]] = self._readers[agent](env.observe(agent))
        self._acting = {}
        return result._replace(is_over=True)

    def _finish(self, agent: Hashable, result: StepResult, is_terminated: bool) -> None:
        flags = result.terminations if is_terminated else result.truncations
        flags[self._live.pop(agent)] = True
