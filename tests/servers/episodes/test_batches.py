"""Batches that are cut from open episodes, and the warning about numbers far outside the usual."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tree
from tests.servers.scripted_store import ScriptedStore, make_plan

from muxrl.servers.episodes.far_values import FarValues
from muxrl.servers.episodes.trajectories import Chunk, Trajectory, stack
from muxrl.servers.episodes.warnings import Warnings


def test_a_batch_may_hold_all_steps_of_a_frame() -> None:
    store = ScriptedStore(make_plan("a"), batch_env_steps=3, cuts_after_frames=True)
    episodes = ["e", "f", "g", "h"]
    for episode_id in episodes:
        store.start(episode_id)
    for t in range(3):
        for episode_id in episodes:
            store.step(t, "a", episode_id, rewards={"a": 1.0} if t else {})
        assert len(store.feed.batches) == max(0, t - 1), "none in the middle of a frame"
        store.store.finish_frame()
    assert [[chunk.num_env_steps for chunk in batch] for batch in store.feed.batches] == [
        [1, 1, 1, 1],
        [1, 1, 1, 1],
    ]


def far_value_said(
    caplog: pytest.LogCaptureFixture, what: str, usual: float, odd: float, *, at: int = 1_150
) -> list[str]:
    """Returns the warnings about one odd number among usual ones."""
    store = ScriptedStore(make_plan("a"), batch_env_steps=100)
    store.start()
    for t in range(at + 150):
        value = odd if t == at else usual
        if what == "reward":
            store.step(t, "a", rewards={"a": value} if t else {})
        else:
            store.step(t, observations={"a": np.array([value, 0.0], np.float32)})
    return [r.getMessage() for r in caplog.records if "is it a mistake?" in r.getMessage()]


@pytest.mark.parametrize(("what", "verb"), [("reward", "is"), ("observation", "holds")])
@pytest.mark.parametrize(
    ("usual", "odd", "is_said"),
    [
        (1.0, 1e5, True),
        (1.0, -1e5, True),
        (1.0, 900.0, False),
        (0.001, 10.0, False),
        (1e4, 1e5, False),
    ],
)
def test_a_number_far_outside_of_what_came_before_is_named(
    caplog: pytest.LogCaptureFixture,
    what: str,
    verb: str,
    usual: float,
    odd: float,
    is_said: bool,
) -> None:
    said = far_value_said(caplog, what, usual, odd)
    assert len(said) == is_said
    if is_said:
        assert f"{what} of 'a' in episode e {verb} {odd:.3g}, but the largest" in said[0]
        assert said[0].endswith(f"limits.max_abs_{what} can refuse such numbers")


@pytest.mark.parametrize(
    ("observation", "is_said"),
    [
        (np.array([0.0, 1e6]), True),
        ({"own": {"x": np.array([1e6])}, "kind": np.array(3)}, True),
        ({"own": np.array([1_000_000])}, False),  # integers are images or choices, and not judged
        (np.full(5_000, 1e6), False),
    ],
)
def test_every_real_number_of_an_observation_is_looked_at(
    caplog: pytest.LogCaptureFixture, observation: Any, is_said: bool
) -> None:
    far = FarValues(Warnings())
    for scale in (0, 1):
        rows = stack([tree.map_structure(lambda x, s=scale: x * s, observation)] * 1_001)
        one = Trajectory("i", "e", "a", "p", rows, np.zeros(1_000, int), np.zeros(1_000), {})
        far.look_at([Chunk("e", 0, [one])])
    assert len(caplog.records) == is_said


@pytest.mark.parametrize("what", ["reward", "observation"])
def test_the_first_numbers_are_not_compared(caplog: pytest.LogCaptureFixture, what: str) -> None:
    assert not far_value_said(caplog, what, 1.0, 1e6, at=150)
