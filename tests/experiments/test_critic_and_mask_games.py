"""The games in which a critic of the state, or an action mask, decides."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import numpy as np
import pytest
from tests.experiments.playing import mean_return

from muxrl.experiments.simulations.cue_game import CueGame
from muxrl.experiments.simulations.locked_doors import (
    LockedDoors,
    blind_return,
    oracle_return,
    random_return,
)
from muxrl.experiments.simulations.stairs import Stairs
from muxrl.experiments.simulations.weather_cues import WeatherCues

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("choose", "expected"),
    [
        (lambda mask: int(np.flatnonzero(mask)[-1]), oracle_return()),
        (lambda mask: int(RNG.choice(np.flatnonzero(mask))), random_return()),
        (lambda mask: len(mask) - 1, blind_return()),
    ],
    ids=["best open", "any open", "best of all"],
)
def test_bounds_of_the_locked_doors(choose: Callable[[np.ndarray], int], expected: float) -> None:
    measured = mean_return(LockedDoors(), lambda _, seen: choose(seen["action_mask"]), 800)
    assert measured == pytest.approx(expected, abs=0.1)


def test_bounds_of_the_locked_doors_in_figures() -> None:
    assert oracle_return() == pytest.approx(7.5556, abs=1e-4)
    assert blind_return() == pytest.approx(0.1426, abs=1e-4)


def test_a_locked_door_ends_the_game_or_raises() -> None:
    env = LockedDoors(num_agents=1)
    observations, _ = env.reset(seed=0)
    locked = int(np.flatnonzero(observations["agent_0"]["action_mask"] == 0)[0])
    _, rewards, terminations, truncations, _ = env.step({"agent_0": locked})
    assert (rewards, terminations) == ({"agent_0": -1.0}, {"agent_0": True})
    assert truncations == {"agent_0": False}
    assert env.agents == []
    strict = LockedDoors(num_agents=1, is_strict=True)
    strict.reset(seed=0)
    with pytest.raises(ValueError, match=f"agent_0 walked into door {locked}, which is locked"):
        strict.step({"agent_0": locked})


def test_without_masks_nobody_sees_which_doors_are_open() -> None:
    env = LockedDoors(has_masks=False)
    for seed in range(5):
        observations, _ = env.reset(seed=seed)
        assert [observations[agent].tolist() for agent in env.agents] == [[1.0, 0.0], [0.0, 1.0]]


def test_the_weather_is_in_the_rewards_and_the_state_and_nowhere_else() -> None:
    plain, weather = CueGame(), WeatherCues(strength=5.0)
    seen = set()
    for seed in range(20):
        observations, _ = weather.reset(seed=seed)
        expected, _ = plain.reset(seed=seed)
        actions = dict.fromkeys(plain.possible_agents, 0)
        for agent in plain.possible_agents:
            np.testing.assert_array_equal(observations[agent], expected[agent])
        np.testing.assert_array_equal(weather.state()[:-1], plain.state())
        assert weather.weather == 5.0 * weather.state()[-1]
        rewards, plain_rewards = weather.step(actions)[1], plain.step(actions)[1]
        assert rewards == {a: r + weather.weather for a, r in plain_rewards.items()}
        seen.add(weather.weather)
    assert seen == {-5.0, 5.0}


def test_random_climbers_reach_the_top_by_chance_alone() -> None:
    env = Stairs(height=20)
    for distance in (1, 3):
        tops = []
        for seed in range(1500):
            observations, _ = env.reset(seed, {"distance": distance})
            assert all(seen.argmax() == distance - 1 for seen in observations.values())
            rewards: dict[str, float] = {}
            while env.agents:
                _, now, *_ = env.step({a: int(RNG.integers(2)) for a in env.agents})
                rewards |= now
            tops += rewards.values()
        assert fmean(tops) == pytest.approx(2.0**-distance, abs=0.04)
