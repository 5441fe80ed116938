"""Translates the protocol's spaces to Gymnasium's, and to what an RLModule reads and acts in.

RLlib's default encoders read a ``Box`` of one dimension, or of three (an image); everything else is
flattened (one-hot for integers) as `gymnasium.spaces.utils.flatten` does it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard

import gymnasium
import numpy as np
from gymnasium.spaces import utils as gym_utils

from muxrl.protocol import spaces as plain

ACTION_MASK_KEY = plain.ACTION_MASK_KEY
STATE_KEY = plain.STATE_KEY
"""RLlib's ``ENV_STATE``: the global state, where it is part of an agent's Dict observation."""


def to_gymnasium(space: plain.Space) -> gymnasium.Space:
    """Returns the Gymnasium space that a plain one describes."""
    if isinstance(space, plain.Box):
        low, high = plain.bounds(space)
        dtype = np.dtype(space.dtype)
        if dtype.kind in "iub":
            first, last = (
                (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind in "iu" else (0, 1)
            )
            # Chosen, not clipped: float64 cannot hold the ends of the 64-bit integers.
            with np.errstate(invalid="ignore"):
                low = np.where(low <= first, first, low.astype(dtype))
                high = np.where(high >= last, last, high.astype(dtype))
        return gymnasium.spaces.Box(low.astype(dtype), high.astype(dtype), space.shape, dtype.type)
    if isinstance(space, plain.Discrete):
        return gymnasium.spaces.Discrete(space.n, start=space.start)
    if isinstance(space, plain.MultiDiscrete):
        return gymnasium.spaces.MultiDiscrete(list(space.nvec))
    if isinstance(space, plain.MultiBinary):
        return gymnasium.spaces.MultiBinary(space.n)
    if isinstance(space, plain.DictSpace):
        return gymnasium.spaces.Dict({k: to_gymnasium(v) for k, v in space.spaces.items()})
    return gymnasium.spaces.Tuple([to_gymnasium(v) for v in space.spaces])


def module_observation_space(space: plain.Space) -> gymnasium.spaces.Box:
    """Returns the float32 Box that an RLModule sees for observations of `space`.

    It has one dimension, or three for an image.
    """
    gym_space = to_gymnasium(space)
    if is_read_whole(gym_space):
        return gymnasium.spaces.Box(
            gym_space.low.astype(np.float32),
            gym_space.high.astype(np.float32),
            gym_space.shape,
            np.float32,
        )
    flat = gym_utils.flatten_space(gym_space)
    if not isinstance(flat, gymnasium.spaces.Box):
        raise TypeError(f"observations of {space} cannot be flattened to one array")
    return gymnasium.spaces.Box(
        flat.low.astype(np.float32), flat.high.astype(np.float32), flat.shape, np.float32
    )


def module_observation_reader(space: plain.Space) -> Callable[[Any], np.ndarray]:
    """Returns the function from a conforming value of `space` to the RLModule's float32 array."""
    gym_space = to_gymnasium(space)
    if is_read_whole(gym_space):
        if gym_space.dtype == np.float32:
            return _as_it_is
        return _as_float32

    def flattened(value: Any) -> np.ndarray:
        return np.asarray(gym_utils.flatten(gym_space, value), dtype=np.float32)

    return flattened


def is_read_whole(space: gymnasium.Space) -> TypeGuard[gymnasium.spaces.Box]:
    """Whether an RLModule reads the space's values in their own shape."""
    return isinstance(space, gymnasium.spaces.Box) and len(space.shape) in (1, 3)


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
    """A part of a space that has no parts."""

    space: gymnasium.Space
    size: int
    """Its length when it is flattened."""
    is_number: bool
    """Whether its values are numbers: not one-hot, truth values or an action mask."""


def leaves(space: gymnasium.Space, key: str = "") -> Iterator[Leaf]:
    """Yields the leaves of a space in the order in which Gymnasium flattens them."""
    if isinstance(space, gymnasium.spaces.Dict):
        for name, sub in space.spaces.items():
            yield from leaves(sub, name)
    elif isinstance(space, gymnasium.spaces.Tuple):
        for sub in space.spaces:
            yield from leaves(sub)
    else:
        is_number = isinstance(space, gymnasium.spaces.Box) and space.dtype != np.bool_
        yield Leaf(space, gym_utils.flatdim(space), is_number and key != ACTION_MASK_KEY)


def has_numbers(space: plain.Space) -> bool:
    """Whether there are numbers in it; see `Leaf`."""
    return any(leaf.is_number for leaf in leaves(to_gymnasium(space)))


def part_reader(whole: plain.Space, part: plain.Space) -> Callable[[Any], Any]:
    """Returns the function from a value of `whole` to what `split_state` and `split_mask` leave of
    it, of which `part` is the space."""
    if part is whole or not isinstance(whole, plain.DictSpace):
        return lambda value: value
    own = next((name for name, sub in whole.spaces.items() if sub is part), None)
    if own is not None:
        return lambda value: value[own]
    assert isinstance(part, plain.DictSpace)
    names = tuple(part.spaces)
    return lambda value: {name: value[name] for name in names}


def without_bounds(space: plain.Space) -> plain.Space:
    """Returns a space without the bounds of its Boxes."""
    if isinstance(space, plain.Box):
        return plain.Box(space.shape, space.dtype)
    if isinstance(space, plain.DictSpace):
        return plain.DictSpace({key: without_bounds(sub) for key, sub in space.spaces.items()})
    if isinstance(space, plain.TupleSpace):
        return plain.TupleSpace(tuple(map(without_bounds, space.spaces)))
    return space


def _as_it_is(value: Any) -> np.ndarray:
    return value


def _as_float32(value: Any) -> np.ndarray:
    return value.astype(np.float32)


def split_mask(space: plain.Space) -> tuple[plain.Space, bool]:
    """Takes an action mask out of a Dict observation space.

    Returns:
        The space without it (the sub-space alone if one is left), and whether there was one.
    """
    if not isinstance(space, plain.DictSpace) or ACTION_MASK_KEY not in space.spaces:
        return space, False
    rest = {k: v for k, v in space.spaces.items() if k != ACTION_MASK_KEY}
    return (next(iter(rest.values())) if len(rest) == 1 else plain.DictSpace(rest)), True


def without_mask(value: Mapping[str, Any]) -> Any:
    """Returns what `split_mask` leaves of a value of the space with the mask."""
    return _without(value, ACTION_MASK_KEY)


def split_state(space: plain.Space) -> tuple[plain.Space, plain.Space | None]:
    """Takes the global state out of a Dict observation space that has more than that.

    Returns:
        The space without it (the sub-space alone if one is left), and the state's, if any.
    """
    if not isinstance(space, plain.DictSpace) or STATE_KEY not in space.spaces:
        return space, None
    rest = {k: v for k, v in space.spaces.items() if k != STATE_KEY}
    if not rest.keys() - {ACTION_MASK_KEY}:
        return space, None
    left = next(iter(rest.values())) if len(rest) == 1 else plain.DictSpace(rest)
    return left, space.spaces[STATE_KEY]


def without_state(value: Mapping[str, Any]) -> Any:
    """Returns what `split_state` leaves of a value of the space with the state."""
    return _without(value, STATE_KEY)


def _without(value: Mapping[str, Any], name: str) -> Any:
    rest = {k: v for k, v in value.items() if k != name}
    return next(iter(rest.values())) if len(rest) == 1 else rest
