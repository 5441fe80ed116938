"""Plays simulations by rules that are known, as the client plays them: through their adapters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muxrl.client.adapters import adapt

Choose = Callable[[str, Any], Any]
"""What an agent does, by its observation."""


def returns_of(env: Any, choose: Choose, seed: int = 0) -> dict[str, float]:
    """Returns what each agent earns in an episode."""
    simulation = adapt(env)
    observations, _ = simulation.reset(seed)
    returns = dict.fromkeys(simulation.possible_agents, 0.0)
    while observations:
        result = simulation.step({a: choose(a, seen) for a, seen in observations.items()})
        for agent, reward in result.rewards.items():
            returns[agent] += reward
        observations = result.observations
    return returns
