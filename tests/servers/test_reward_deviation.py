"""The standard deviation of rewards so far."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muxrl.servers.episodes.reward_scale import RewardDeviation

NUMBERS = st.floats(-1e3, 1e3).map(lambda x: round(x, 3))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(NUMBERS, max_size=6), max_size=6))
def test_adding_episodes_one_by_one_equals_adding_all_at_once(episodes: list[list[float]]) -> None:
    scale = RewardDeviation()
    for rewards in episodes:
        scale.add(rewards)
    everything = [reward for rewards in episodes for reward in rewards]
    spread = float(np.std(everything)) if everything else 0.0
    if spread == 0.0:
        assert scale.std == 1.0
    elif spread > 1e-2:
        assert scale.std == pytest.approx(spread, rel=1e-6)


def test_equal_rewards_are_unchanged() -> None:
    scale = RewardDeviation()
    assert scale.std == 1.0
    for _ in range(1000):
        scale.add([-0.1, -0.1, -0.1])
    assert scale.std == 1.0


def test_its_state_can_be_restored() -> None:
    scale = RewardDeviation()
    scale.add([1.0, 5.0])
    other = RewardDeviation()
    other.set_state(scale.get_state())
    for one in (scale, other):
        one.add([9.0])
    assert other.std == scale.std == pytest.approx((32 / 3) ** 0.5)
