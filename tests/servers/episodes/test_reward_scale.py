"""Rewards are divided by the deviation of the discounted return; reported returns are not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.servers.scripted_store import ScriptedStore, make_plan

from muxrl.servers.agents.seating import Seating
from muxrl.servers.episodes.reward_scale import CLIP, RewardDeviation, RewardScale


def expected(episodes: list[list[float]], gamma: float) -> list[float]:
    """Returns scaled rewards by the definition, keeping all discounted sums."""
    sums: list[float] = []
    scaled = []
    for rewards in episodes:
        total = 0.0
        for reward in rewards:
            total = gamma * total + reward
            sums.append(total)
            deviation = np.std(sums) if len(sums) > 1 else 1.0
            scaled.append(float(np.clip(reward / (deviation or 1.0), -CLIP, CLIP)))
    return scaled


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_scaled_rewards_are_those_of_the_definition(size: float) -> None:
    rng = np.random.default_rng(0)
    episodes = [list(size * rng.normal(0.5, 1.0, 20)) for _ in range(3)]
    scale = RewardScale(0.9)
    scaled = []
    for rewards in episodes:
        discounted = 0.0
        for reward in rewards:
            value, discounted = scale.scale(reward, discounted)
            scaled.append(value)
    assert scaled == pytest.approx(expected(episodes, 0.9), rel=1e-9)
    assert 0.1 < np.std(scaled[20:]) < 2.0, "whatever their size was"


def test_a_first_reward_after_many_zeros_is_clipped() -> None:
    scale = RewardScale(0.99)
    for _ in range(1_000):
        assert scale.scale(0.0, 0.0) == (0.0, 0.0)
    assert scale.scale(5.0, 0.0) == (CLIP, 5.0)
    assert scale.scale(-5.0, 0.0) == (-CLIP, -5.0)


@pytest.mark.parametrize("batch_env_steps", [2, 10**9], ids=["cut in its middle", "whole"])
def test_recorded_rewards_are_scaled_and_reported_returns_are_not(batch_env_steps: int) -> None:
    """Agents that share a policy share the scale; each agent has its own discounted sum."""
    scales = {"default": RewardScale(0.5)}
    store = ScriptedStore(make_plan("ab"), batch_env_steps, seating=Seating(), reward_scales=scales)
    given = dict(zip("ab", np.random.default_rng(0).normal(2.0, 3.0, (2, 6)), strict=True))
    store.start()
    for t in range(6):
        store.step(t, rewards={a: float(r[t - 1]) for a, r in given.items()} if t else {})
    last = {agent: float(r[5]) for agent, r in given.items()}
    ended = store.end(6, terminations=dict.fromkeys("ab", True), rewards=last)
    assert ended.returns == pytest.approx({a: float(r.sum()) for a, r in given.items()})
    again, sums = RewardScale(0.5), {"a": 0.0, "b": 0.0}
    expected_rewards: dict[str, list[float]] = {"a": [], "b": []}
    for t in range(6):
        for agent, rewards in given.items():
            value, sums[agent] = again.scale(float(rewards[t]), sums[agent])
            expected_rewards[agent].append(value)
    for agent in "ab":
        assert sorted(store.recorded(agent)[2]) == pytest.approx(sorted(expected_rewards[agent]))


# --- of rewards in a replay ------------------------------------------------------------------

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
