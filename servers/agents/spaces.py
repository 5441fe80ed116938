"""How a network reads the protocol's spaces, and the parts of spaces.

A network reads a ``Box`` with one dimension, or with three (an image), as RLlib's default encoders
do; everything else is flattened, see `muxrl.protocol.dense`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from muxrl.protocol import spaces as plain
from muxrl.protocol.dense import flat_reader
from muxrl.servers.agents.keys import ACTION_MASK, STATE


def is_read_whole(space: plain.Space) -> TypeGuard[plain.Box]:
    """Whether a network reads the space's values in their own shape, without flattening."""
    return isinstance(space, plain.Box) and len(space.shape) in (1, 3)


def read_shape(space: plain.Space) -> tuple[int, ...]:
    """Returns the shape in which a network reads a value of `space`."""
    return space.shape if is_read_whole(space) else (flat_size(space),)


def module_observation_space(space: plain.Space) -> plain.Box:
    """Returns the float32 Box that a network sees for observations of `space`.

    It has one dimension, or three for an image.
    """
    ends = [
        plain.typed_bounds(leaf.space)
        if isinstance(leaf.space, plain.Box)
        else (np.zeros(leaf.size), np.ones(leaf.size))
        for leaf in leaves(space)
    ]
    shape = read_shape(space)
    low, high = (
        np.concatenate([np.ravel(end).astype(np.float32) for end in side]).reshape(shape)
        for side in zip(*ends, strict=True)
    )
    return plain.box_within(low, high)


def module_observation_reader(space: plain.Space) -> Callable[[Any], np.ndarray]:
    """Returns a function that turns a conforming value of `space` into a network's float32 array.

    It turns rows of such values, ``[..., *shape]``, into rows.
    """
    if not is_read_whole(space):
        return flat_reader(space)
    if space.dtype == "float32":
        return lambda value: value
    return lambda value: value.astype(np.float32)


def flat_size(space: plain.Space) -> int:
    """Returns the length of a value of `space` as one flat array, integers one-hot."""
    if isinstance(space, plain.Box):
        return math.prod(space.shape)
    if isinstance(space, plain.Discrete | plain.MultiBinary):
        return space.n
    if isinstance(space, plain.MultiDiscrete):
        return sum(space.nvec)
    return sum(flat_size(sub) for _, sub in plain.parts_of(space) or ())


class Leaf(NamedTuple):
    """A part of a space that has no further parts."""

    space: plain.Space
    size: int
    """Length of the leaf in the flattened space."""
    is_number: bool
    """Whether its values are numbers: not one-hot, truth values or an action mask."""


def leaves(space: plain.Space, key: Any = "") -> Iterator[Leaf]:
    """Yields the leaves of a space in the order of flattening."""
    parts = plain.parts_of(space)
    if parts is None:
        is_number = isinstance(space, plain.Box) and np.dtype(space.dtype).kind != "b"
        yield Leaf(space, flat_size(space), is_number and key != ACTION_MASK)
    for name, sub in sorted(parts or ()):
        yield from leaves(sub, name)


def has_numbers(space: plain.Space) -> bool:
    """Whether a space has numbers; see `Leaf`."""
    return any(leaf.is_number for leaf in leaves(space))


def part_reader(whole: plain.Space, part: plain.Space) -> Callable[[Any], Any]:
    """Returns the function from a value of `whole` to a value of `part`, a space that `split_state`
    and `split_mask` leave of `whole`."""
    if part is whole or not isinstance(whole, plain.DictSpace):
        return lambda value: value
    own = next((name for name, sub in whole.spaces.items() if sub is part), None)
    if own is not None:
        return lambda value: value[own]
    rest, _ = split_state(whole)
    if any(sub is rest for sub in whole.spaces.values()):  # there were a state and a masked dict
        read = part_reader(rest, part)
        return lambda value: read(without(value, STATE))
    assert isinstance(part, plain.DictSpace)
    names = tuple(part.spaces)
    return lambda value: {name: value[name] for name in names}


def with_boxes(space: plain.Space, made: Callable[[plain.Box], plain.Box]) -> plain.Space:
    """Returns a space in which each Box is replaced by what `made` returns for it."""
    if isinstance(space, plain.Box):
        return made(space)
    if isinstance(space, plain.DictSpace):
        return plain.DictSpace({key: with_boxes(sub, made) for key, sub in space.spaces.items()})
    if isinstance(space, plain.TupleSpace):
        return plain.TupleSpace(tuple(with_boxes(sub, made) for sub in space.spaces))
    return space


def without_bounds(space: plain.Space) -> plain.Space:
    """Returns a space without the bounds of its Boxes."""
    return with_boxes(space, lambda box: plain.Box(box.shape, box.dtype))


def split_mask(space: plain.Space) -> tuple[plain.Space, bool]:
    """Takes an action mask out of a Dict observation space.

    Returns:
        The space without it (the sub-space alone if just one is left), and whether there was one.
    """
    if not isinstance(space, plain.DictSpace) or ACTION_MASK not in space.spaces:
        return space, False
    return _space_without(space, ACTION_MASK), True


def split_state(space: plain.Space) -> tuple[plain.Space, plain.Space | None]:
    """Takes the global state out of a Dict observation space that has more than that.

    Returns:
        The space without it (the sub-space alone if just one is left), and the state's, if any.
    """
    if not isinstance(space, plain.DictSpace) or STATE not in space.spaces:
        return space, None
    if not space.spaces.keys() - {STATE, ACTION_MASK}:
        return space, None
    return _space_without(space, STATE), space.spaces[STATE]


def _space_without(space: plain.DictSpace, key: str) -> plain.Space:
    rest = without(space.spaces, key)
    return plain.DictSpace(rest) if isinstance(rest, dict) else rest


def without(value: Mapping[str, Any], key: str) -> Any:
    """Returns what `split_mask` or `split_state` leaves of a value whose space has that key."""
    rest = {k: v for k, v in value.items() if k != key}
    return next(iter(rest.values())) if len(rest) == 1 else rest
