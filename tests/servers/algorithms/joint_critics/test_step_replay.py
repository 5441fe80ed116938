"""The replay of steps: a ring of arrays, and its state."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from muxrl.servers.algorithms.joint_critics.step_replay import StepReplay


def episode(first: int, length: int, *, is_terminated: bool = False) -> SingleAgentEpisode:
    """Step t observes t, acts t + 0.5 and earns 10 t; `first` is the first t."""
    ts = range(first, first + length)
    return SingleAgentEpisode(
        observations=[{"obs": np.full((2, 1), t, np.float32)} for t in [*ts, first + length]],
        actions=[np.full((2, 3), t + 0.5, np.float32) for t in ts],
        rewards=[10.0 * t for t in ts],
        terminated=is_terminated,
        truncated=not is_terminated,
        len_lookback_buffer=0,
    )


lengths = st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=12)


@given(lengths, st.integers(1, 12))
def test_it_holds_the_newest_steps_as_they_were_played(
    chunks: list[tuple[int, bool]], capacity: int
) -> None:
    replay = StepReplay(capacity, seed=0)
    kept: deque[tuple[float, float]] = deque(maxlen=capacity)
    t = 0
    for length, is_terminated in chunks:
        assert replay.add(episode(t, length, is_terminated=is_terminated)) == length
        for i in range(length):
            kept.append((t + i, float(is_terminated and i == length - 1)))
        t += length + 1  # the final observation's
    assert len(replay) == len(kept)
    if not kept:
        with pytest.raises(ValueError, match="the replay is empty"):
            replay.sample(1)
        return
    batch = replay.sample(400)
    found = set(zip(batch.obs["obs"][:, 0, 0].tolist(), batch.terminated.tolist(), strict=True))
    assert found == set(kept)
    t_drawn = batch.obs["obs"][:, 0, 0]
    np.testing.assert_array_equal(batch.next_obs["obs"][:, 1, 0], t_drawn + 1)
    np.testing.assert_array_equal(batch.actions[:, 1, 2], t_drawn + 0.5)
    np.testing.assert_array_equal(batch.rewards, 10.0 * t_drawn)


def filled(capacity: int, num_steps: int) -> StepReplay:
    replay = StepReplay(capacity, seed=3)
    replay.add(episode(0, num_steps))
    replay.sample(5)
    return replay


def assert_same(one: Any, other: Any) -> None:
    for a, b in zip((one.obs["obs"], one.actions, one.rewards, one.terminated),
                    (other.obs["obs"], other.actions, other.rewards, other.terminated),
                    strict=True):  # fmt: skip
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("num_steps", [4, 10, 13])
def test_with_its_state_it_goes_on_alike(num_steps: int) -> None:
    replay, other = filled(10, num_steps), StepReplay(10)
    state = replay.get_state()
    replay.add(episode(50, 3))  # the state is a copy
    other.set_state(state)
    other.add(episode(50, 3))
    assert len(other) == len(replay) == min(num_steps + 3, 10)
    assert other.num_bytes == replay.num_bytes > 0
    assert_same(replay.sample(100), other.sample(100))


def test_a_larger_replay_takes_the_state_of_a_smaller_one_and_not_the_other_way() -> None:
    state = filled(10, 13).get_state()
    larger = StepReplay(12)
    larger.set_state(state)
    larger.add(episode(50, 2))
    assert len(larger) == 12
    assert set(larger.sample(500).rewards) == {10.0 * t for t in [*range(3, 13), 50, 51]}
    with pytest.raises(ValueError, match=r"10 steps were kept, and the replay now holds 9 \(buff"):
        StepReplay(9).set_state(state)
