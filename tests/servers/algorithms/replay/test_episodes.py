"""A replay of whole episodes."""

from __future__ import annotations

import numpy as np
import pytest
from tests.servers.algorithms.qmix.pieces import play, sample_all, stored

from muxrl.servers.algorithms.replay.episodes import EpisodeReplay
from muxrl.servers.episodes.trajectories import Trajectory


def test_replayed_episodes_are_those_added_and_padded() -> None:
    long, short = play(4, seed=1), play(2, seed=0, is_terminated=False)
    batch = sample_all(long, short)
    assert batch["rewards"].tolist() == [[1, 2, 0, 0], [101, 102, 103, 104]]
    assert batch["terminateds"].tolist() == [[0, 0, 0, 0], [0, 0, 0, 1]]
    assert batch["loss_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert batch["actions"].shape == (2, 4, 2)
    assert batch["actions"].dtype == np.int64
    np.testing.assert_array_equal(batch["actions"][1], [[0, 3], [1, 3], [0, 3], [1, 3]])
    for key, part in long.parts.items():
        assert batch["obs"][key].dtype == np.float32
        assert batch["obs"][key].shape == (2, *part.shape)
        np.testing.assert_array_equal(batch["obs"][key][1], part)
        np.testing.assert_array_equal(batch["obs"][key][0, :3], short.parts[key])
        assert not batch["obs"][key][0, 3:].any()


def test_a_full_replay_replaces_the_oldest_and_clears_its_row() -> None:
    replay = EpisodeReplay(2, seed=0)
    for seed, length in enumerate([5, 3, 2, 7]):
        assert replay.add(stored(length, seed))
    assert len(replay) == 2
    batch = replay.sample(10)
    assert sorted(batch["rewards"][:, 0].tolist()) == [201, 301]
    short = batch["rewards"][:, 0].argmin()
    assert batch["rewards"][short].tolist() == [201, 202, 0, 0, 0, 0, 0]
    assert not batch["obs"]["obs"][short, 3:].any()
    assert not batch["actions"][short, 2:].any()
    assert batch["terminateds"].sum(1).tolist() == [1, 1]


def test_a_replay_goes_on_in_a_larger_one_and_not_in_a_smaller_one() -> None:
    replay, larger = EpisodeReplay(3, seed=0), EpisodeReplay(5, seed=0)
    for seed in range(7):
        replay.add(stored(2, seed))
    larger.set_state(replay.get_state())
    for seed in (7, 8, 9):
        larger.add(stored(2, seed))
    # The first two were added; the third took the place of one of the three.
    begins = larger.sample(9)["rewards"][:, 0].tolist()
    assert len(begins) == 5
    assert {701, 801, 901} <= set(begins)
    with pytest.raises(ValueError, match=r"3 episodes were kept, and the replay now holds 2"):
        EpisodeReplay(2).set_state(replay.get_state())


def test_samples_are_distinct_and_as_long_as_the_longest() -> None:
    replay = EpisodeReplay(100, seed=0)
    for seed in range(20):
        replay.add(stored(1 + seed % 3, seed))
    replay.add(stored(30, 20))
    for _ in range(20):
        batch = replay.sample(8)
        assert len(set(batch["rewards"][:, 0].tolist())) == 8
        assert batch["loss_mask"][:, -1].any(), "padded to a longer episode than any of the batch"


def test_empty_episodes_are_not_stored() -> None:
    assert not EpisodeReplay(2).add(Trajectory("a", "e", "a", "p", [np.zeros(1)], [], [], {}))
