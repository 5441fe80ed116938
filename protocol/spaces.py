"""Observation and action spaces as plain data, and their conversion from Gymnasium's spaces.

The classes mirror Gymnasium's spaces (https://gymnasium.farama.org/api/spaces/) without
importing it, so that a simulation's machine needs only numpy. They travel as JSON in a server's
spec.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

ACTION_MASK_KEY = "action_mask"
"""Key in a Dict observation of the mask of available Discrete actions, as in PettingZoo."""
STATE_KEY = "state"
"""Key in a Dict observation of the global state, for a team's mixer or critic."""

Bound = float | list[Any] | None
"""One number for all elements, or nested lists with one for each; None for no bound."""


class Box(msgspec.Struct, frozen=True, tag="box", tag_field="type", omit_defaults=True):
    """Arrays of one shape and dtype, elementwise between `low` and `high`."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    low: Bound = None
    high: Bound = None

    def __str__(self) -> str:
        return f"Box{self.shape} {self.dtype}"


class Discrete(msgspec.Struct, frozen=True, tag="discrete", tag_field="type", omit_defaults=True):
    """Integers ``start .. start + n - 1``."""

    n: int
    start: int = 0

    def __str__(self) -> str:
        first = "" if self.start == 0 else f", start={self.start}"
        return f"Discrete({self.n}{first})"


class MultiDiscrete(msgspec.Struct, frozen=True, tag="multi_discrete", tag_field="type"):
    """One integer each in ``0 .. nvec[i] - 1``."""

    nvec: tuple[int, ...]

    def __str__(self) -> str:
        return f"MultiDiscrete{self.nvec}"


class MultiBinary(msgspec.Struct, frozen=True, tag="multi_binary", tag_field="type"):
    """`n` zeros and ones."""

    n: int

    def __str__(self) -> str:
        return f"MultiBinary({self.n})"


class DictSpace(msgspec.Struct, frozen=True, tag="dict", tag_field="type"):
    """Named sub-spaces."""

    spaces: dict[str, Space]

    def __str__(self) -> str:
        return "Dict(" + ", ".join(f"{k}: {v}" for k, v in self.spaces.items()) + ")"


class TupleSpace(msgspec.Struct, frozen=True, tag="tuple", tag_field="type"):
    """Ordered sub-spaces."""

    spaces: tuple[Space, ...]

    def __str__(self) -> str:
        return "Tuple(" + ", ".join(str(s) for s in self.spaces) + ")"


Space = Box | Discrete | MultiDiscrete | MultiBinary | DictSpace | TupleSpace


def parts_of(space: Space) -> list[tuple[Any, Space]] | None:
    """Returns the sub-spaces of a Dict or Tuple, by key or index; None for another space."""
    if isinstance(space, DictSpace):
        return list(space.spaces.items())
    return list(enumerate(space.spaces)) if isinstance(space, TupleSpace) else None


def leaf_type(space: Space) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Returns dtype and shape of a value of a space without sub-spaces."""
    if isinstance(space, Box):
        return np.dtype(space.dtype), tuple(space.shape)
    if isinstance(space, Discrete):
        return np.dtype(np.int64), ()
    assert isinstance(space, MultiDiscrete | MultiBinary)
    return np.dtype(np.int64), (len(space.nvec) if isinstance(space, MultiDiscrete) else space.n,)


def bounds(space: Box) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns `low` and `high` of a Box as float64 arrays of its shape, infinite if unbounded."""

    def filled(bound: Bound, missing: float) -> NDArray[np.float64]:
        given = np.array(bound, np.float64)  # NaN for None
        return np.broadcast_to(np.where(np.isnan(given), missing, given), space.shape)

    return filled(space.low, -math.inf), filled(space.high, math.inf)


def typed_bounds(space: Box) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns `bounds` in the space's own dtype; unbounded integers are bounded by their dtype."""
    dtype = np.dtype(space.dtype)
    low, high = bounds(space)
    if dtype.kind not in "iub":
        return low.astype(dtype), high.astype(dtype)
    first, last = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    # Selected rather than clipped: float64 cannot hold the limits of 64-bit integers.
    with np.errstate(invalid="ignore"):
        return (
            np.where(low <= first, first, low.astype(dtype)).astype(dtype),
            np.where(high >= last, last, high.astype(dtype)).astype(dtype),
        )


def box_within(low: NDArray[Any], high: NDArray[Any]) -> Box:
    """Returns the Box between two arrays, with their shape and dtype."""
    return Box(low.shape, low.dtype.name, _plain_bound(low), _plain_bound(high))


_KINDS = frozenset({"Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple"})


def kind_of(space: Any) -> str:
    """Returns which of Gymnasium's kinds a space is ("Box", "Dict"), by the names of its classes.

    Simulators bring subclasses of these. For any other space it is the name of its class.
    """
    names = [base.__name__ for base in type(space).__mro__]
    return next((name for name in names if name in _KINDS), names[0])


MAX_CHOICES = 1_024
"""An integer in a Box counts as a choice if it has at most so many values."""


def choices(space: Space) -> tuple[tuple[int, int], ...]:
    """Returns the lowest value and the number of values for each choice that an action makes.

    It is () for a Box of anything but integers, or of integers with more than `MAX_CHOICES` values,
    for a Dict, and for a Tuple with other parts than Discrete.
    """
    if isinstance(space, Discrete):
        return ((space.start, space.n),)
    if isinstance(space, MultiDiscrete):
        return tuple((0, n) for n in space.nvec)
    if isinstance(space, MultiBinary):
        return ((0, 2),) * space.n
    if isinstance(space, TupleSpace) and all(isinstance(s, Discrete) for s in space.spaces):
        return tuple(choice for sub in space.spaces for choice in choices(sub))
    if isinstance(space, Box) and np.dtype(space.dtype).kind in "iu":
        low, high = (bound.ravel() for bound in bounds(space))
        if (high - low < MAX_CHOICES).all():
            return tuple((int(a), int(b - a) + 1) for a, b in zip(low, high, strict=True))
    return ()


def from_gymnasium(space: Any) -> Space:
    """Returns the plain form of a Gymnasium space; see `kind_of`.

    Raises:
        TypeError: a kind of space that the protocol does not carry (Text, Graph, Sequence).
    """
    kind = kind_of(space)
    if kind == "Box":
        return Box(
            shape=tuple(int(n) for n in space.shape),
            dtype=np.dtype(space.dtype).name,
            low=_plain_bound(space.low),
            high=_plain_bound(space.high),
        )
    if kind == "Discrete":
        return Discrete(n=int(space.n), start=int(space.start))
    if kind == "MultiDiscrete" and np.ndim(space.nvec) == 1 and not np.any(space.start):
        return MultiDiscrete(nvec=tuple(int(n) for n in space.nvec))
    if kind == "MultiBinary" and np.ndim(space.n) == 0:
        return MultiBinary(n=int(space.n))
    if kind == "Dict":
        return DictSpace({str(key): from_gymnasium(sub) for key, sub in space.spaces.items()})
    if kind == "Tuple":
        return TupleSpace(tuple(from_gymnasium(sub) for sub in space.spaces))
    way = {
        "Sequence": "; make it a Dict of a Box with as many rows as there can be, and a "
        "MultiBinary of those that are there",
        "Graph": "; make it a Dict of Boxes, of as many nodes and edges as there can be",
        "Text": "; make it a MultiDiscrete of as many characters as there can be",
        "MultiDiscrete": "; count from 0 and add the start in the environment, and make several "
        "dimensions one",
        "MultiBinary": "; make it one of as many as there are in all, or a Box of int8",
        "OneOf": "; make it one Discrete of all choices, or a Tuple of which and what",
    }.get(kind, "")
    raise TypeError(
        f"the space {space} cannot travel: known are Box, Discrete, MultiDiscrete and "
        f"MultiBinary of one dimension (counted from 0), Dict and Tuple{way}"
    )


def _plain_bound(bound: NDArray[Any]) -> Bound:
    array = np.asarray(bound, dtype=np.float64)
    if array.size == 0:
        return None
    first = float(array.flat[0])
    if (array == first).all():
        return first if math.isfinite(first) else None
    plain = array.astype(object)
    plain[~np.isfinite(array)] = None
    return plain.tolist()
