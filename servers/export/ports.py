"""The inputs and outputs of an exported policy: names, shapes, dtypes, and values of a space.

A leaf of a space is one port, named by its path: of a Dict ``KEY``, in a Dict below it ``KEY.KEY``,
of a Tuple ``0``, ``1`` and so on. A space that is a leaf itself is called ``observation``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from muxrl.servers.agents.spaces import is_read_whole

OBSERVATION = "observation"

_WIDEST = 1e3
"""Bounds beyond this are taken for none when values are drawn: uniform ones would all be huge."""


@dataclass(frozen=True)
class Port:
    """An input or output ``[B, *shape]``."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """Of numpy."""

    def zeros(self, batch_size: int) -> np.ndarray:
        """Returns ``[batch_size, *shape]``."""
        return np.zeros((batch_size, *self.shape), self.dtype)


def ports_of(space: gymnasium.Space, name: str = "") -> list[Port]:
    """Returns a port for each leaf of a space, in the order in which Gymnasium flattens them.

    Args:
        space: an observation space, or a part of one.
        name: path of the part; "" for the whole.
    """
    return [
        Port(path, leaf.shape or (), leaf.dtype.name)  # type: ignore[union-attr]
        for path, leaf in _leaves(space, name)
    ]


def feed_of(space: gymnasium.Space, name: str, value: Any) -> dict[str, np.ndarray]:
    """Returns the parts of one value of a space by their ports' names, ``[1, ...]`` each."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return {
            path: array
            for key, sub in _children(space)
            for path, array in feed_of(sub, _below(name, key), value[key]).items()
        }
    return {name or OBSERVATION: np.asarray(value, space.dtype)[None]}


def flatten(
    space: gymnasium.Space,
    name: str,
    given: dict[str, Tensor],
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Returns what `module_observation_reader` does, in torch: a Tensor ``[B, ...]``."""
    if isinstance(space, spaces.Box):
        value = given[name or OBSERVATION].to(dtype)
        return value if is_read_whole(space) else value.flatten(1)
    leaves = [_flat(leaf, given[path], dtype) for path, leaf in _leaves(space, name)]
    return leaves[0] if len(leaves) == 1 else torch.cat(leaves, -1)


def tame(space: gymnasium.Space) -> gymnasium.Space:
    """Returns a space to draw observations from: the same, with moderate values."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: tame(sub) for key, sub in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([tame(sub) for sub in space.spaces])
    if not isinstance(space, spaces.Box) or space.dtype == np.bool_:
        return space
    low, high, kind = space.low, space.high, np.dtype(space.dtype).type
    if issubclass(kind, np.floating):
        low = np.where(low < -_WIDEST, -np.inf, low)
        high = np.where(high > _WIDEST, np.inf, high)
    else:
        low = np.maximum(low, -_WIDEST)
        high = np.maximum(np.minimum(high, _WIDEST), low)
    tamed: Any = (low.astype(kind), high.astype(kind), space.shape, kind)
    return spaces.Box(*tamed)


def one_hot(index: Tensor, size: int) -> Tensor:
    """Returns ``[..., size]`` float32 of integers ``[...]``; one that is negative has no 1."""
    return (index.unsqueeze(-1) == torch.arange(size)).to(torch.float32)


def _children(space: spaces.Dict | spaces.Tuple) -> Iterator[tuple[Any, gymnasium.Space]]:
    yield from space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)


def _leaves(space: gymnasium.Space, name: str) -> Iterator[tuple[str, gymnasium.Space]]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for key, sub in _children(space):
            yield from _leaves(sub, _below(name, key))
    else:
        yield name or OBSERVATION, space


def _below(name: str, key: Any) -> str:
    return f"{name}.{key}" if name else str(key)


def _flat(space: gymnasium.Space, value: Tensor, dtype: torch.dtype) -> Tensor:
    """As `gymnasium.spaces.utils.flatten`, of a leaf."""
    if isinstance(space, spaces.Discrete):
        return one_hot(value - int(space.start), int(space.n)).to(dtype)
    if isinstance(space, spaces.MultiDiscrete):
        parts = [one_hot(value[:, i], int(n)) for i, n in enumerate(space.nvec)]
        return torch.cat(parts, -1).to(dtype)
    return value.to(dtype).flatten(1)
