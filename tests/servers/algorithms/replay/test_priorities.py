"""Prioritized replay: which episodes are drawn, and their weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.algorithms.qmix.pieces import stored

from muxrl.servers.algorithms.replay.episodes import EpisodeReplay
from muxrl.servers.algorithms.replay.priorities import LOWEST, Priorities
from muxrl.servers.algorithms.replay.replay import WEIGHTS

VALUES = np.array([0.5, 4.0, 1.0, 0.01, 2.0])
MEASURED = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30)
SHARE = st.floats(0.0, 1.0)
BY_PRIORITY = 0.6, 0.4


def measured(values: Any, alpha: float = 0.6, beta: float = 0.4) -> Priorities:
    priorities = Priorities(len(values), alpha, beta)
    priorities.update(np.arange(len(values)), np.asarray(values))
    return priorities


# Draws and weights.


@pytest.mark.parametrize("alpha", [0.3, 0.6, 1.0])
def test_episodes_are_drawn_as_often_as_their_priority_says(alpha: float) -> None:
    priorities, rng = measured(VALUES, alpha), np.random.default_rng(0)
    rows = np.concatenate([priorities.draw(5, 8, rng)[0] for _ in range(5_000)])
    expected = VALUES**alpha / (VALUES**alpha).sum()
    np.testing.assert_allclose(np.bincount(rows, minlength=5) / len(rows), expected, atol=0.005)


def test_rows_that_were_removed_are_not_drawn() -> None:
    priorities, rng = measured([1.0, 1.0, 1.0, 1e9, 1e-9]), np.random.default_rng(0)
    priorities.remove(np.array([3, 4]))
    assert set(np.concatenate([priorities.draw(3, 4, rng)[0] for _ in range(50)])) == {0, 1, 2}


@given(values=MEASURED, alpha=SHARE, beta=SHARE, num=st.integers(1, 40))
def test_weights_make_up_for_the_probability(
    values: list[float], alpha: float, beta: float, num: int
) -> None:
    rows, weights = measured(values, alpha, beta).draw(len(values), num, np.random.default_rng(0))
    raised = np.array(values) ** alpha
    probabilities = raised / raised.sum()
    expected = (len(values) * probabilities[rows]) ** -beta
    np.testing.assert_allclose(weights, expected / expected.max(), rtol=1e-5)
    assert weights.dtype == np.float32
    assert weights.max() == 1.0
    # Draws are stratified by probability: no row is drawn much more or less often than expected.
    counts = np.bincount(rows, minlength=len(values))
    assert np.all(np.abs(counts - num * probabilities) < 2.0)


# What rows are worth.


def test_an_episode_without_error_is_still_drawn_and_one_that_is_not_finite_stays() -> None:
    priorities = measured([2.0, 3.0, 4.0])
    priorities.update(np.array([0, 1, 2]), np.array([0.0, np.nan, np.inf]))
    assert priorities.get_state(3)["values"].tolist() == [LOWEST, 3.0, 4.0]
    priorities.add(np.array([0]))
    assert priorities.get_state(3)["values"][0] == 4.0


@given(
    capacity=st.integers(1, 5),
    script=st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 4), st.floats(0.01, 9.0)))),
)
def test_priorities_stay_with_their_episodes(capacity: int, script: list[Any]) -> None:
    """Priorities equal those of a ring of (episode, priority), in whatever order episodes are added
    and measured."""
    priorities, num_added = Priorities(capacity, *BY_PRIORITY), 0
    model: dict[int, float] = {}
    seen: list[float] = []
    for step in script:
        if step is None:
            row = num_added % capacity
            priorities.add(np.array([row]))
            model[row] = max(seen, default=1.0)
            num_added += 1
        elif model:
            row, value = step[0] % len(model), step[1]
            priorities.update(np.array([row]), np.array([value]))
            seen.append(value)
            model[row] = value
    values = priorities.get_state(len(model))["values"]
    assert values.tolist() == [model[row] for row in range(len(model))]


# The replay.


def fields_of(batch: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in batch.items() if k != "obs"} | batch["obs"]


def filled(num: int, capacity: int = 4, seed: int = 0) -> EpisodeReplay:
    replay = EpisodeReplay(capacity, seed, BY_PRIORITY)
    for number in range(num):
        replay.add(stored(1 + number % 5, number))
    return replay


def test_without_priorities_episodes_are_drawn_and_kept_as_before() -> None:
    replay, rng = EpisodeReplay(20, seed=3), np.random.default_rng(3)
    for number in range(12):
        replay.add(stored(2, number))
    for _ in range(5):
        batch = replay.sample(8)
        rows = rng.choice(12, 8, replace=False, shuffle=False)
        assert batch["rewards"][:, 0].tolist() == (100.0 * rows + 1).tolist()
        assert not {"rows", WEIGHTS} & batch.keys()
    assert "priorities" not in replay.get_state()


def test_the_batch_says_where_its_episodes_are() -> None:
    replay = filled(3)
    replay.update_priorities(np.arange(3), np.array([1e-3, 1e3, 1e-3]))
    batch = replay.sample(3)
    assert batch["rows"].tolist().count(1) >= 2
    assert batch["rewards"][:, 0].tolist() == (100.0 * batch["rows"] + 1).tolist()
    assert batch[WEIGHTS].shape == (3,)


def test_an_episode_that_takes_the_place_of_the_oldest_is_new() -> None:
    replay = filled(4)
    replay.update_priorities(np.arange(4), np.array([1e-3, 2e-3, 5.0, 3e-3]))
    replay.add(stored(2, 9))
    assert replay.get_state()["priorities"]["values"].tolist() == [5.0, 2e-3, 5.0, 3e-3]


@pytest.mark.parametrize("num_episodes", [0, 3, 4, 9])
def test_a_restored_replay_draws_as_the_first_would(num_episodes: int) -> None:
    first, second = filled(num_episodes), filled(0, seed=99)
    num = min(num_episodes, 4)
    first.update_priorities(np.arange(num), np.geomspace(0.1, 5.0, num))
    second.set_state(first.get_state())
    for number in range(10, 16):
        batches = []
        for replay in (first, second):
            replay.add(stored(1 + number % 7, number))
            batch = replay.sample(3)
            replay.update_priorities(batch["rows"], 0.1 + batch["rows"])
            batches.append(fields_of(batch))
        for name, value in batches[0].items():
            np.testing.assert_array_equal(value, batches[1][name], err_msg=name)


def test_a_replay_that_drew_uniformly_goes_on_by_priority_and_back() -> None:
    uniform, prioritized = EpisodeReplay(4, seed=0), filled(0, capacity=6)
    for number in range(6):
        uniform.add(stored(2, number))
    prioritized.set_state(uniform.get_state())
    state = prioritized.get_state()
    assert state["priorities"]["values"].tolist() == [1, 1, 1, 1]
    back = EpisodeReplay(4, seed=9)
    back.set_state(state)
    one, other = uniform.sample(3), back.sample(3)
    np.testing.assert_array_equal(one["rewards"], other["rewards"])
