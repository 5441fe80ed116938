"""Our simple_tag beside mpe2's: the same numbers for the same seeds and actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpe2 import simple_tag_v3

from muxrl.experiments.simulations.tag_arrays import SimpleTag

SIDES = [
    {"num_good": 2, "num_adversaries": 3, "num_obstacles": 2},
    {"num_good": 1, "num_adversaries": 3, "num_obstacles": 2},
    {"num_good": 3, "num_adversaries": 1, "num_obstacles": 0},
]


@pytest.mark.parametrize("sides", SIDES, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_same_game(sides: dict[str, int], seed: int) -> None:
    ours = SimpleTag(**sides, max_cycles=50)
    theirs = simple_tag_v3.parallel_env(**sides, max_cycles=50, continuous_actions=False)
    rng = np.random.default_rng(seed)
    pair: tuple[Any, Any] = (ours, theirs)
    assert ours.possible_agents == theirs.possible_agents
    for agent in ours.possible_agents:
        assert ours.observation_space(agent) == theirs.observation_space(agent)
        assert ours.action_space(agent) == theirs.action_space(agent)
    num_paid = 0
    for episode in range(4):
        mine, other = (game.reset(seed=100 * seed + episode)[0] for game in pair)
        assert_alike(mine, other)
        # Actions are held for some steps, or nobody would get anywhere.
        while ours.agents:
            actions = {agent: int(rng.integers(5)) for agent in ours.agents}
            for _ in range(5):
                mine, other = (game.step(actions) for game in pair)
                assert_alike(mine[0], other[0])
                assert dict(mine[1]) == pytest.approx(dict(other[1]), abs=1e-6)
                assert (mine[2], mine[3]) == (other[2], other[3])
                np.testing.assert_allclose(ours.state(), theirs.state(), atol=1e-5)
                num_paid += any(reward != 0 for reward in mine[1].values())
        assert not theirs.agents
    assert num_paid > 20


def assert_alike(mine: dict[str, Any], other: dict[str, Any]) -> None:
    assert mine.keys() == other.keys()
    for agent, seen in mine.items():
        assert seen.dtype == other[agent].dtype
        np.testing.assert_allclose(seen, other[agent], atol=1e-5, err_msg=agent)
