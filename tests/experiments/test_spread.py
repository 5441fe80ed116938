"""The fast spread against mpe2's, number for number, and the unit of the published figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpe2 import simple_spread_v3

from muxrl.experiments.simulations.spread import Spread


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
