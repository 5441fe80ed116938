"""Scales observations by the bounds of their space to 0..1, so that networks read small numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from muxrl.protocol.spaces import Box, Space, typed_bounds
from muxrl.servers.agents.spaces import leaves, read_shape

Scaling = Literal["images", "bounded", "none"]
"""What to scale: images (a Box of uint8 in three dimensions), Boxes with bounds, or nothing."""

_WIDEST = 1e6
"""A bound beyond this is a dtype's (the largest float32, say), not a task's."""


@dataclass(frozen=True)
class Scale:
    """Maps ``x`` to ``(x - low) / width``, float32.

    Attributes:
        low: of the shape that a network reads, or a scalar if all elements are equal.
        width: likewise.
    """

    low: np.ndarray
    width: np.ndarray

    @cached_property
    def _has_offset(self) -> bool:
        return bool(self.low.any())

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Scales values of that shape, or rows of them, in place; returns them."""
        if self._has_offset:
            values -= self.low
        values /= self.width
        return values

    @property
    def key(self) -> object:
        """Equal for scales that do the same."""
        return self.low.tolist(), self.width.tolist()


def find_scale(space: Space, scaling: Scaling) -> Scale | None:
    """Returns the scale of a space's observations; None: they are read as they are.

    Numbers with a bound on one side only are not scaled. Action masks, truth values and one-hot
    parts are 0 or 1 already.
    """
    if scaling == "none":
        return None
    lows, widths = [], []
    for leaf in leaves(space):
        low, width = np.zeros(leaf.size), np.ones(leaf.size)
        box = leaf.space
        if leaf.is_number and isinstance(box, Box):
            is_image = np.dtype(box.dtype) == np.uint8 and len(box.shape) == 3
            if is_image or scaling == "bounded":
                first, last = (np.ravel(b).astype(np.float64) for b in typed_bounds(box))
                has_bounds = (np.abs(first) <= _WIDEST) & (np.abs(last) <= _WIDEST) & (first < last)
                low = np.where(has_bounds, first, low)
                width = np.where(has_bounds, last - first, width)
        lows.append(low)
        widths.append(width)
    low, width = np.concatenate(lows), np.concatenate(widths)
    if not low.any() and (width == 1.0).all():
        return None
    shape = read_shape(space)
    return Scale(_compact(low, shape), _compact(width, shape))


def scales_any(observation_spaces: Iterable[Space], scaling: Scaling) -> bool:
    """Whether scaling changes observations of any of these spaces."""
    return any(find_scale(space, scaling) is not None for space in observation_spaces)


def _compact(flat: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Returns a scalar for an array of equal numbers: it scales an image in half the time."""
    array = flat.astype(np.float32)
    return np.asarray(array[0]) if (array == array[0]).all() else array.reshape(shape)
