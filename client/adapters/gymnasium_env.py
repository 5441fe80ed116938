"""A single-agent Gymnasium environment as a `Simulation` whose one agent is 'agent'.

https://gymnasium.farama.org/api/env/
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muxrl.client.adapters.adapted_env import AdaptedEnv, plain_reward
from muxrl.client.adapters.simulation import StepResult

AGENT = "agent"


class GymnasiumEnv(AdaptedEnv):
    """A step is the one agent's action; there is no global state beyond what the agent sees.

    Args:
        env: a `gymnasium.Env`, or whatever behaves like one.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(
            env,
            [AGENT],
            lambda _: env.observation_space,
            lambda _: env.action_space,
            has_state=False,
        )

    def _first_infos(self) -> Mapping[Any, Any]:
        return {AGENT: self._observe_reset()[1]}

    def reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """See `Simulation.reset`."""
        observation, info = self._observe_reset(seed, options)
        return self._begin({AGENT: observation}, {AGENT: info})

    def step(self, actions: dict[str, Any]) -> StepResult:
        """See `Simulation.step`."""
        action = self._env_actions(actions)[AGENT]
        given, reward, is_terminated, is_truncated, info = self._step_env(action)
        observation = {AGENT: self._readers[AGENT](given)}
        self._add_masks({AGENT: info}, observation)
        is_over = bool(is_terminated or is_truncated)
        if is_over:
            self._acting = {}
        return StepResult(
            {} if is_over else observation,
            {AGENT: plain_reward(AGENT, reward)},
            {AGENT: True} if is_terminated else {},
            {AGENT: True} if is_truncated and not is_terminated else {},
            observation if is_over else {},
            {AGENT: info},
            is_over,
        )
