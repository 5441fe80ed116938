"""A single-agent Gymnasium environment as a `Simulation` whose one agent is 'agent'.

https://gymnasium.farama.org/api/env/
"""

from __future__ import annotations

from typing import Any

from muxrl.client.adapters.simulation import StepResult, wrong_actions
from muxrl.client.adapters.translation import Agents

AGENT = "agent"


class GymnasiumEnv:
    """A step is the one agent's action.

    Args:
        env: a `gymnasium.Env`, or whatever behaves like one.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        agents = Agents([AGENT], lambda _: env.observation_space, lambda _: env.action_space)
        self.possible_agents = agents.possible
        self.observation_spaces = agents.observation_spaces
        self.action_spaces = agents.action_spaces
        self.state_size: int | None = None
        self._read = agents.readers[AGENT]
        self._write = agents.writers[AGENT]
        self._acting: tuple[str, ...] = ()
        self._is_closed = False

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """See `Simulation.reset`."""
        observation, info = self._env.reset(seed=seed)
        self._acting = (AGENT,)
        return {AGENT: self._read(observation)}, {AGENT: info}

    def step(self, actions: dict[str, Any]) -> StepResult:
        """See `Simulation.step`."""
        if not self._acting or len(actions) != 1 or AGENT not in actions:
            raise wrong_actions(self._acting, actions)
        given, reward, is_terminated, is_truncated, info = self._env.step(
            self._write(actions[AGENT])
        )
        observation = {AGENT: self._read(given)}
        is_over = bool(is_terminated or is_truncated)
        if is_over:
            self._acting = ()
        return StepResult(
            {} if is_over else observation,
            {AGENT: float(reward)},
            {AGENT: True} if is_terminated else {},
            {AGENT: True} if is_truncated and not is_terminated else {},
            observation if is_over else {},
            {AGENT: info},
            is_over,
        )

    def state(self) -> None:
        """See `Simulation.state`: one agent's environment has no state beyond what it sees."""
        return None

    def close(self) -> None:
        """See `Simulation.close`."""
        if not self._is_closed:
            self._is_closed = True
            self._env.close()
