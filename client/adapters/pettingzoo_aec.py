"""Adapts PettingZoo's AECEnv: one agent acts at a time.

https://pettingzoo.farama.org/api/aec/
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from muxrl.client.adapters.dict_env import DictEnv
from muxrl.client.adapters.places import ALL
from muxrl.client.adapters.raw_values import Five
from muxrl.client.adapters.simulation import SimulationError


class PettingZooAEC(DictEnv):
    """An AECEnv as a `Simulation`; a step is one agent's action, up to the next live agent's turn.

    Agents that are done, which PettingZoo wants to be stepped with None, are stepped here. An
    agent's reward is that of `env.last()`: the sum since it last acted, given at its turn or when
    it is done.

    Args:
        env: a `pettingzoo.AECEnv`, or an object that behaves like one.
    """

    def _reset_env(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> Any:
        super()._reset_env(seed, options)
        self._there = dict.fromkeys(self._env.agents)
        self._have_acted: set[Hashable] = set()
        first_infos = dict(getattr(self._env, "infos", {}))
        seen, _, _, _, infos = self._until_next_turn()
        return seen, {**first_infos, **infos}

    def _step_env(self, actions: dict[Hashable, Any]) -> Five:
        for agent, action in actions.items():
            self._env.step(action)
            self._have_acted.add(agent)
        return self._until_next_turn()

    def _until_next_turn(self) -> Five:
        env, there, readers = self._env, self._there, self._agents.readers
        seen: dict[Hashable, Any] = {}
        rewards: dict[Hashable, Any] = {}
        terminations: dict[Hashable, bool] = {}
        truncations: dict[Hashable, bool] = {}
        infos: dict[Hashable, Any] = {}
        while env.agents:
            agent = env.agent_selection
            there[agent] = None
            observation, reward, is_terminated, is_truncated, info = env.last()
            # Before its first action an agent has a reward only if another agent's move gave one.
            if reward or agent in self._have_acted:
                rewards[agent] = reward
            if not (is_terminated or is_truncated):
                seen[agent], infos[agent] = observation, info
                return seen, rewards, terminations, truncations, infos
            infos[agent] = {**info} if type(info) is dict else info
            (terminations if is_terminated else truncations)[agent] = True
            del there[agent]
            if observation is not None:
                seen[agent] = readers[agent](observation)
            env.step(None)
            if agent in env.agents:
                raise SimulationError(
                    f"the environment did not remove agent {agent!r}, which is done, when it was "
                    "stepped with None; its step() must call _was_dead_step(action) first"
                )
        # An environment may end by emptying `agents`, without the steps with None.
        unpaid = getattr(env, "_cumulative_rewards", {})
        for agent in there:
            infos.setdefault(agent, getattr(env, "infos", {}).get(agent, {}))
            if agent in unpaid and (unpaid[agent] or agent in self._have_acted):
                rewards[agent] = unpaid[agent]
            is_truncated = env.truncations.get(agent, False)
            is_terminated = env.terminations.get(agent, False) or not is_truncated
            (terminations if is_terminated else truncations)[agent] = True
            if not is_terminated:  # its value is bootstrapped from this observation
                seen[agent] = env.observe(agent)
        self._there = {}
        terminations[ALL] = True
        return seen, rewards, terminations, truncations, infos
