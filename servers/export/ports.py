"""The inputs and outputs of an exported policy: names, shapes, dtypes, and values.

Each leaf of a space is a port, named by its path: ``KEY`` in a Dict, ``KEY.KEY`` in a Dict inside
it, ``0``, ``1`` and so on in a Tuple. A space that is itself a leaf is called ``observation``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from muxrl.protocol.spaces import (
    Box,
    Discrete,
    MultiDiscrete,
    Space,
    box_within,
    leaf_type,
    parts_of,
    typed_bounds,
)
from muxrl.servers.agents.spaces import is_read_whole, with_boxes

OBSERVATION = "observation"

_WIDEST = 1e3
"""Wider bounds are ignored when values are drawn, as uniform values would all be huge."""


@dataclass(frozen=True)
class Port:
    """An input or output ``[B, *shape]``."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """Name of a numpy dtype."""

    def zeros(self, batch_size: int) -> np.ndarray:
        """Returns zeros, ``[batch_size, *shape]``."""
        return np.zeros((batch_size, *self.shape), self.dtype)


def ports_of(space: Space, name: str = "") -> list[Port]:
    """Returns a port for each leaf of a space, in the order in which it is flattened.

    Args:
        space: an observation space, or a part of one.
        name: path of the part; "" for the whole.
    """
    types = [(path, *leaf_type(leaf)) for path, leaf in _leaves(space, name)]
    return [Port(path, shape, dtype.name) for path, dtype, shape in types]


def feed_of(space: Space, name: str, value: Any) -> dict[str, np.ndarray]:
    """Returns the leaves of one value of a space, by names of their ports, ``[1, ...]`` each."""
    parts = parts_of(space)
    if parts is None:
        return {name or OBSERVATION: np.asarray(value, leaf_type(space)[0])[None]}
    return {
        path: array
        for key, sub in sorted(parts)
        for path, array in feed_of(sub, _below(name, key), value[key]).items()
    }


def flatten(
    space: Space,
    name: str,
    given: dict[str, Tensor],
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Flattens as `module_observation_reader` does, in torch; returns a Tensor ``[B, ...]``."""
    if isinstance(space, Box):
        value = given[name or OBSERVATION].to(dtype)
        return value if is_read_whole(space) else value.flatten(1)
    leaves = [_flat(leaf, given[path], dtype) for path, leaf in _leaves(space, name)]
    return leaves[0] if len(leaves) == 1 else torch.cat(leaves, -1)


def moderate(space: Space) -> Space:
    """Returns a space to draw observations from, with bounds that give moderate values."""
    return with_boxes(space, _moderate)


def _moderate(box: Box) -> Box:
    if np.dtype(box.dtype) == np.bool_:
        return box
    low, high = typed_bounds(box)
    if low.dtype.kind == "f":
        ends = np.where(low < -_WIDEST, -np.inf, low), np.where(high > _WIDEST, np.inf, high)
    else:
        least = np.maximum(low, -_WIDEST)
        ends = least, np.maximum(np.minimum(high, _WIDEST), least)
    return box_within(*(end.astype(low.dtype) for end in ends))


def one_hot(index: Tensor, size: int) -> Tensor:
    """Returns one-hot rows ``[..., size]`` float32 of integers ``[...]``; zeros if negative."""
    return (index.unsqueeze(-1) == torch.arange(size)).to(torch.float32)


def _leaves(space: Space, name: str) -> Iterator[tuple[str, Space]]:
    parts = parts_of(space)
    if parts is None:
        yield name or OBSERVATION, space
    for key, sub in sorted(parts or ()):
        yield from _leaves(sub, _below(name, key))


def _below(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)


def _flat(space: Space, value: Tensor, dtype: torch.dtype) -> Tensor:
    if isinstance(space, Discrete):
        return one_hot(value - space.start, space.n).to(dtype)
    if isinstance(space, MultiDiscrete):
        parts = [one_hot(value[:, i], n) for i, n in enumerate(space.nvec)]
        return torch.cat(parts, -1).to(dtype)
    return value.to(dtype).flatten(1)
