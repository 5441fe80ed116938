"""Our spread and tag give the same numbers as mpe2's for the same seeds and actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpe2 import simple_spread_v3, simple_tag_v3

from muxrl.experiments.simulations.spread import Spread
from muxrl.experiments.simulations.tag_arrays import SimpleTag

Choose = Callable[[Any, np.random.Generator], int]


def any_action(observation: Any, rng: np.random.Generator) -> int:
    return int(rng.integers(5))


def towards_the_middle(observation: Any, rng: np.random.Generator) -> int:
    """Returns an action that brings agents together, so that they push each other."""
    if rng.random() < 0.2:
        return int(rng.integers(5))
    place = observation[2:4]
    axis = int(abs(place[1]) > abs(place[0]))
    return 1 + 2 * axis + int(place[axis] < 0)


def play_both(ours: Any, theirs: Any, seed: int | None, choose: Choose, hold: int = 1) -> list[Any]:
    """Plays an episode in both games, asserts that they are equal, and returns the rewards.

    Each action is held for `hold` steps.
    """
    rng, paid = np.random.default_rng(seed), []
    mine, other = (game.reset(seed=seed)[0] for game in (ours, theirs))
    assert_alike(mine, other)
    while ours.agents:
        actions = {agent: choose(mine[agent], rng) for agent in ours.agents}
        for _ in range(hold):
            (mine, *told), (other, *expected) = (game.step(actions) for game in (ours, theirs))
            assert_alike(mine, other)
            assert dict(told[0]) == pytest.approx(dict(expected[0]), rel=1e-9)
            assert told[1:3] == expected[1:3]
            np.testing.assert_allclose(ours.state(), theirs.state(), atol=1e-6)
            paid.append(told[0])
    assert not theirs.agents
    return paid


def assert_alike(mine: dict[str, Any], other: dict[str, Any]) -> None:
    assert mine.keys() == other.keys()
    for agent, seen in mine.items():
        assert seen.dtype == other[agent].dtype
        np.testing.assert_allclose(seen, other[agent], atol=1e-6, err_msg=agent)


@pytest.mark.parametrize("choose", [any_action, towards_the_middle])
@pytest.mark.parametrize("local_ratio", [0.5, 0.2])
def test_spread_is_the_same_game_as_mpe2_s(choose: Choose, local_ratio: float) -> None:
    fast = Spread(local_ratio=local_ratio)
    theirs = simple_spread_v3.parallel_env(N=3, local_ratio=local_ratio, max_cycles=25)
    num_touching = 0
    for episode in range(8):
        seed = 100 + episode if episode % 2 == 0 else None  # None goes on with the game's own draws
        paid = play_both(fast, theirs, seed, choose)
        num_touching += sum(len(set(rewards.values())) > 1 for rewards in paid)
    assert num_touching > (20 if choose is towards_the_middle else 0)


@pytest.mark.parametrize("sides", [(2, 3, 2), (1, 3, 2), (3, 1, 0)], ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_tag_is_the_same_game_as_mpe2_s(sides: tuple[int, int, int], seed: int) -> None:
    given = dict(zip(("num_good", "num_adversaries", "num_obstacles"), sides, strict=True))
    ours = SimpleTag(**given, max_cycles=50)
    theirs = simple_tag_v3.parallel_env(**given, max_cycles=50, continuous_actions=False)
    assert ours.possible_agents == theirs.possible_agents
    for agent in ours.possible_agents:
        assert ours.observation_space(agent) == theirs.observation_space(agent)
        assert ours.action_space(agent) == theirs.action_space(agent)
    # Actions are held, as otherwise agents would hardly move.
    paid = [
        rewards
        for episode in range(4)
        for rewards in play_both(ours, theirs, 100 * seed + episode, any_action, hold=5)
    ]
    assert sum(any(reward != 0 for reward in rewards.values()) for rewards in paid) > 20
