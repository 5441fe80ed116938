"""Spaces are the same after the way through JSON, and through Gymnasium and back."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from gymnasium import spaces as gym
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.some_spaces import BOXES, SPACES

from muxrl.protocol.spaces import (
    Box,
    Space,
    bounds,
    from_gymnasium,
)
from muxrl.protocol.values import sample
from muxrl.servers.gymnasium_spaces import to_gymnasium


@given(SPACES)
def test_a_space_travels_as_json(space: Space) -> None:
    assert msgspec.json.decode(msgspec.json.encode(space), type=Space) == space


@given(SPACES, st.integers(0, 2**16))
def test_gymnasium_agrees_with_our_samples(space: Space, seed: int) -> None:
    value = sample(space, np.random.default_rng(seed))
    assert to_gymnasium(space).contains(value)


def test_every_whole_number_of_a_box_is_drawn_as_often() -> None:
    drawn = sample(Box((3_000,), "int8", -1, 1), np.random.default_rng(0))
    assert (np.abs(np.bincount(drawn + 1, minlength=3) - 1_000) < 120).all()


@given(SPACES)
def test_a_space_survives_the_way_to_gymnasium_and_back(space: Space) -> None:
    theirs = to_gymnasium(space)
    assert to_gymnasium(from_gymnasium(theirs)) == theirs


@given(BOXES)
def test_bounds_have_the_shape_of_the_space(space: Box) -> None:
    low, high = bounds(space)
    assert low.shape == high.shape == space.shape
    assert (low <= high).all()


@pytest.mark.parametrize(
    "space",
    [
        gym.Box(-np.inf, np.inf, (3,), np.float32),
        gym.Box(np.array([-1, -np.inf], np.float32), np.array([np.inf, 2], np.float32)),
        gym.Box(-1, 1, (), np.float64),
        gym.Box(0, 1, (2,), np.bool_),
        gym.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64),
        gym.Box(0, np.iinfo(np.uint64).max, (2,), np.uint64),
    ],
    ids=str,
)
def test_a_space_of_gymnasium_survives_the_way_here_and_back(space: gym.Space[Any]) -> None:
    assert to_gymnasium(from_gymnasium(space)) == space


@pytest.mark.parametrize(
    "space",
    [
        gym.Text(3),
        gym.Sequence(gym.Discrete(2)),
        gym.MultiDiscrete([[2, 2], [2, 2]]),
        gym.MultiDiscrete([2, 2], start=[1, 0]),
        gym.MultiBinary([2, 2]),
        gym.OneOf([gym.Discrete(2), gym.Discrete(3)]),
        gym.Dict({"inner": gym.Text(3)}),
    ],
)
def test_spaces_that_the_protocol_lacks_are_refused(space: gym.Space[Any]) -> None:
    with pytest.raises(TypeError, match=r"cannot travel: known are Box, Discrete.*; (make|count)"):
        from_gymnasium(space)
