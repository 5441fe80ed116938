"""Plays an episode of any simulation and checks the contract of `Simulation` at every step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from muxrl.client.adapters import Simulation, StepResult
from muxrl.protocol.values import conform, sample

Choose = Callable[[str, Any], Any]


@dataclass
class Played:
    returns: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    terminated: list[str] = field(default_factory=list)
    truncated: list[str] = field(default_factory=list)
    results: list[StepResult] = field(default_factory=list)


def play_an_episode(
    simulation: Simulation, choose: Choose | None = None, seed: int = 0, max_steps: int = 500
) -> Played:
    rng = np.random.default_rng(seed)
    spaces, played = simulation.observation_spaces, Played()
    observations, _ = simulation.reset(seed=seed)
    assert observations
    while observations:
        for agent, observation in observations.items():
            conform(spaces[agent], observation)
        actions = {
            agent: choose(agent, observation)
            if choose
            else sample(simulation.action_spaces[agent], rng)
            for agent, observation in observations.items()
        }
        result = simulation.step(actions)
        played.results.append(result)
        for agent, reward in result.rewards.items():
            assert type(reward) is float
            played.returns[agent] += reward
        done_before = set(played.terminated + played.truncated)
        played.terminated += result.terminations
        played.truncated += result.truncations
        assert all(result.terminations.values())
        assert all(result.truncations.values())
        done = played.terminated + played.truncated
        assert len(done) == len(set(done)), "an agent is done once"
        assert not result.observations.keys() & set(done), "the done do not act"
        assert result.final_observations.keys() <= set(done) - done_before
        assert result.is_over == (not result.observations)
        for agent, observation in result.final_observations.items():
            conform(spaces[agent], observation)
        state = simulation.state()
        if simulation.state_size is None:
            assert state is None
        else:
            assert state is not None
            assert (state.shape, state.dtype) == ((simulation.state_size,), np.float32)
        observations = result.observations
        assert len(played.results) <= max_steps
    with pytest.raises(Exception, match="call reset"):
        simulation.step({simulation.possible_agents[0]: 0})
    return played


@pytest.fixture(scope="session")  # which Hypothesis lets a property test use
def play() -> Callable[..., Played]:
    return play_an_episode
