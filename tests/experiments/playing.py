"""Plays simulations by known rules, through their adapters as the client does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muxrl.client.adapters import adapt

Choose = Callable[[str, Any], Any]
"""Returns the action of an agent for its observation."""


def returns_of(env: Any, choose: Choose, seed: int = 0) -> dict[str, float]:
    """Returns the return of each agent in an episode."""
    simulation = adapt(env)
    observations, _ = simulation.reset(seed)
    returns = dict.fromkeys(simulation.possible_agents, 0.0)
    while observations:
        result = simulation.step({a: choose(a, seen) for a, seen in observations.items()})
        for agent, reward in result.rewards.items():
            returns[agent] += reward
        observations = result.observations
    return returns
