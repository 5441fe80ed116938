"""Observations are scaled by the bounds of their space, if these bounds mean something in the
task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.servers.scripted_store import make_plan

from muxrl.protocol.spaces import Box, DictSpace, Discrete, Space, bounds
from muxrl.servers.agents.observing import Observing
from muxrl.servers.agents.scaling import find_scale, scales_any

IMAGE = Box((4, 5, 3), "uint8", 0, 255)


def read(space: Space, scaling: Any, value: Any) -> np.ndarray:
    observing = Observing(replace(make_plan({"a": space}), scale_observations=scaling))
    values = observing.reader("a", space)(value)
    box = observing.space(space)
    assert values.dtype == np.float32
    assert values.shape == box.shape
    low, high = bounds(box)
    assert (values >= low).all()
    assert (values <= high).all()
    return values


@pytest.mark.parametrize("scaling", ["images", "bounded"])
def test_an_image_is_read_between_0_and_1(scaling: str) -> None:
    image = np.random.default_rng(0).integers(0, 256, IMAGE.shape, np.uint8)
    image.flat[:2] = 0, 255
    assert np.array_equal(read(IMAGE, scaling, image), image.astype(np.float32) / np.float32(255))
    assert np.array_equal(read(IMAGE, "none", image), image.astype(np.float32))


def test_an_image_inside_of_a_dict_is_scaled_and_nothing_else_is() -> None:
    space = DictSpace({"a": Box((2,), "float32", -2.0, 2.0), "image": IMAGE, "n": Discrete(3)})
    value = {"a": np.array([-2.0, 1.0], np.float32), "image": np.full(IMAGE.shape, 51), "n": 2}
    values = read(space, "images", value)
    assert values[:2].tolist() == [-2.0, 1.0]
    assert np.allclose(values[2:62], 0.2)
    assert values[62:].tolist() == [0.0, 0.0, 1.0]
    assert read(space, "bounded", value)[:2].tolist() == [0.0, 0.75]


@pytest.mark.parametrize(
    "space",
    [
        Box((8,), "uint8"),
        Box((4, 4), "uint8"),
        Box((4, 4, 1), "float32", 0.0, 255.0),
        Box((4, 4, 1), "int8", -1, 1),
        Box((8, 8, 12), "bool"),
        Box((4, 4, 1), "uint8", 0, 1),
    ],
    ids=str,
)
def test_boxes_that_are_no_images_or_already_small_are_not_scaled(space: Box) -> None:
    assert find_scale(space, "images") is None


def test_a_side_without_a_bound_and_a_dtypes_largest_number_are_no_bounds() -> None:
    most = float(np.finfo(np.float32).max)
    box = Box((4,), "float32", [-4.8, None, -most, 3.0], [4.8, 1.0, most, 3.0])
    values = read(box, "bounded", np.array([2.4, 0.5, 7.0, 3.0], np.float32))
    assert values.tolist() == [0.75, 0.5, 7.0, 3.0]
    for unbounded in (Box((3,)), Box((3,), "int64"), Box((2, 2, 2), "int32")):
        assert not scales_any([unbounded], "bounded")
    assert scales_any([Box((3,)), box], "bounded")


def test_an_action_mask_stays_zeros_and_ones() -> None:
    space = DictSpace(
        {"action_mask": Box((2,), "int8", 0, 3), "seen": Box((1,), "float32", 0.0, 10.0)}
    )
    value = {"action_mask": np.array([1, 0], np.int8), "seen": np.array([5.0], np.float32)}
    assert read(space, "bounded", value).tolist() == [1.0, 0.0, 0.5]
