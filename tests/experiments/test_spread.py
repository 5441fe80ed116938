"""The fast spread against mpe2's, number for number, and the unit of the published figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpe2 import simple_spread_v3
from pettingzoo.test import parallel_api_test

from muxrl.experiments.simulations.spread import Spread, make_assigned, original_return


def towards_the_middle(observation: Any, rng: np.random.Generator) -> int:
    """Acts so that agents meet and push each other."""
    if rng.random() < 0.2:
        return int(rng.integers(5))
    place = observation[2:4]
    axis = int(abs(place[1]) > abs(place[0]))
    return 1 + 2 * axis + int(place[axis] < 0)


@pytest.mark.parametrize("is_crowded", [False, True])
@pytest.mark.parametrize("local_ratio", [0.5, 0.2])
def test_it_plays_as_mpe2_does(is_crowded: bool, local_ratio: float) -> None:
    fast = Spread(local_ratio=local_ratio)
    theirs = simple_spread_v3.parallel_env(N=3, local_ratio=local_ratio, max_cycles=25)
    rng = np.random.default_rng(3)
    num_touching = 0
    for episode in range(8):
        seed = 100 + episode if episode % 2 == 0 else None  # None: goes on with its own draws
        seen, _ = fast.reset(seed=seed)
        expected, _ = theirs.reset(seed=seed)
        while fast.agents:
            for agent, observation in expected.items():
                np.testing.assert_allclose(seen[agent], observation, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(fast.state(), theirs.state(), rtol=1e-5, atol=1e-6)
            actions = {
                agent: towards_the_middle(seen[agent], rng) if is_crowded else int(rng.integers(5))
                for agent in fast.agents
            }
            seen, rewards, _, truncations, _ = fast.step(actions)
            expected, their_rewards, _, their_truncations, _ = theirs.step(actions)
            assert rewards == pytest.approx(their_rewards, rel=1e-9)
            assert truncations == their_truncations
            num_touching += len(set(rewards.values())) > 1
        assert not theirs.agents
    assert num_touching > (20 if is_crowded else 0)


def test_it_is_a_valid_parallel_env() -> None:
    parallel_api_test(Spread(), num_cycles=200)


def test_the_original_unit_is_the_original_reward_added_up_by_hand() -> None:
    """OpenAI's rewards, from places alone: every agent is paid everybody's, itself touched."""
    env = simple_spread_v3.parallel_env(N=3, local_ratio=0.5, max_cycles=25)
    world, rng = env.unwrapped.world, np.random.default_rng(0)
    for seed in range(3):
        env.reset(seed=seed)
        mean_return = original = 0.0
        while env.agents:
            _, rewards, *_ = env.step({agent: int(rng.integers(5)) for agent in env.agents})
            mean_return += float(np.mean(list(rewards.values())))
            agents = np.array([agent.state.p_pos for agent in world.agents])
            landmarks = np.array([landmark.state.p_pos for landmark in world.landmarks])
            away = np.linalg.norm(agents[:, None] - landmarks[None], axis=2)
            apart = np.linalg.norm(agents[:, None] - agents[None], axis=2)
            for agent in range(3):
                original -= away.min(axis=0).sum() + (apart[agent] < 0.3).sum()
        assert original_return(mean_return) == pytest.approx(original, abs=1e-9)


def test_another_weight_of_collisions_cannot_be_converted() -> None:
    with pytest.raises(ValueError, match="cannot be converted"):
        original_return(-20.0, local_ratio=0.2)


def test_the_script_covers_the_landmarks() -> None:
    env = Spread()
    spaces = env.observation_space("agent_0"), env.action_space("agent_0")
    scripts = {agent: make_assigned(agent, *spaces, seed=0) for agent in env.possible_agents}
    returns = []
    for seed in range(10_000, 10_040):
        seen, _ = env.reset(seed=seed)
        total = 0.0
        while env.agents:
            seen, rewards, *_ = env.step({a: scripts[a](seen[a]) for a in env.agents})
            total += sum(rewards.values()) / 3
        returns.append(total)
    assert -10 < np.mean(returns) < -7  # random: -26
