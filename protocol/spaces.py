"""Observation and action spaces as plain data, and the check of a value against one.

The classes mirror Gymnasium's spaces (https://gymnasium.farama.org/api/spaces/) without
importing it, so that a simulation's machine needs numpy alone. They travel as JSON in a
server's spec. `conform` is the only place where a value from outside becomes an array.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

ACTION_MASK_KEY = "action_mask"
"""Key of a Dict observation that says which Discrete actions are available, as in PettingZoo."""

Bound = float | list[Any] | None
"""A number for every element, nested lists for one each, None (or null inside) for no bound."""


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


class Mismatch(ValueError):
    """A value does not fit a space.

    Args:
        expected: the (sub-)space.
        got: what the value is instead.
        where: path of the sub-space inside a Dict or Tuple, "" at the top.
        hint: the likely cause, "" if none is known.
    """

    def __init__(self, expected: str, got: str, where: str = "", hint: str = "") -> None:
        self.expected = f"{where}: {expected}" if where else expected
        self.got = got
        self.hint = hint
        super().__init__(f"expected {self.expected}, got {got}" + (f" ({hint})" if hint else ""))


def conform(space: Space, value: Any, where: str = "") -> Any:
    """Returns `value` as the array, integer, dict or tuple that `space` describes.

    Plain numbers and nested lists (all that JSON has) become arrays of the space's dtype;
    arrays must already be of a dtype that casts safely to it. No copy is made of an array
    that fits as it is.

    Args:
        space: what was declared.
        value: what came: array, number, nested list, dict.
        where: path so far, for the message.

    Raises:
        Mismatch: wrong type, shape, dtype or keys; NaN; infinity; an integer out of range. The
            bounds of a Box are not checked: simulations overstep them by rounding.
    """
    if isinstance(space, Box):
        return _conform_box(space, value, where)
    if isinstance(space, Discrete):
        return _conform_discrete(space, value, where)
    if isinstance(space, MultiDiscrete | MultiBinary):
        return _conform_integers(space, value, where)
    if isinstance(space, DictSpace):
        if not isinstance(value, dict):
            raise Mismatch(str(space), _kind(value), where)
        if value.keys() != space.spaces.keys():
            raise Mismatch(f"keys {sorted(space.spaces)}", f"keys {sorted(map(str, value))}", where)
        return {
            key: conform(sub, value[key], f"{where}.{key}" if where else key)
            for key, sub in space.spaces.items()
        }
    if not isinstance(value, list | tuple) or len(value) != len(space.spaces):
        raise Mismatch(f"{len(space.spaces)} items", _kind(value), where)
    return tuple(
        conform(sub, item, f"{where}[{i}]")
        for i, (sub, item) in enumerate(zip(space.spaces, value, strict=True))
    )


_dtype = functools.lru_cache(maxsize=64)(np.dtype)


def _conform_box(space: Box, value: Any, where: str) -> NDArray[Any]:
    dtype = _dtype(space.dtype)
    if isinstance(value, np.ndarray):
        array = value
        if array.dtype != dtype and not np.can_cast(array.dtype, dtype, "safe"):
            hint = f"cast it with .astype(numpy.{space.dtype})" if array.dtype.kind in "fiu" else ""
            raise Mismatch(f"dtype {space.dtype}", f"dtype {array.dtype}", where, hint)
    else:
        array = _from_plain(value, dtype, space, where)
    if array.shape != space.shape:
        raise Mismatch(str(space), f"shape {array.shape}", where)
    # One pass over the data: a sum of squares is finite only if every element is (or large
    # numbers have overflowed, which the exact check then sorts out).
    if array.dtype.kind == "f" and not math.isfinite(_sum_of_squares(array)):
        if np.isnan(array).any():
            at = np.unravel_index(int(np.isnan(array).argmax()), array.shape)
            raise Mismatch("finite numbers", f"NaN at index {list(map(int, at))}", where)
        if np.isinf(array).any():
            at = np.unravel_index(int(np.isinf(array).argmax()), array.shape)
            raise Mismatch("finite numbers", f"infinity at index {list(map(int, at))}", where)
    return array if array.dtype == dtype else array.astype(dtype)


def _sum_of_squares(array: NDArray[Any]) -> float:
    flat = array if array.ndim == 1 else array.reshape(-1)
    return float(flat.dot(flat))


def _from_plain(value: Any, dtype: np.dtype[Any], space: Space, where: str) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except ValueError:
        raise Mismatch(str(space), "a ragged list", where) from None
    if array.dtype.kind not in "fiub":
        raise Mismatch(str(space), _kind(value), where)
    if dtype.kind in "iub" and array.dtype.kind == "f" and array.size:
        raise Mismatch(f"dtype {dtype}", "fractional numbers", where)
    if dtype.kind in "iu" and array.size:
        info = np.iinfo(dtype)
        # As Python's integers: numpy's own do not compare with all of them.
        if int(array.min()) < info.min or int(array.max()) > info.max:
            raise Mismatch(f"dtype {dtype}", f"numbers beyond {info.min}..{info.max}", where)
    with np.errstate(over="ignore"):  # becomes infinite, which `_conform_box` refuses
        return array.astype(dtype)


def _conform_discrete(space: Discrete, value: Any, where: str) -> int:
    if isinstance(value, np.ndarray | np.generic):
        if value.ndim != 0 or value.dtype.kind not in "iu":
            raise Mismatch(str(space), f"shape {value.shape} dtype {value.dtype}", where)
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Mismatch(str(space), _kind(value), where)
    if not space.start <= value < space.start + space.n:
        raise Mismatch(str(space), str(value), where)
    return value


def _conform_integers(
    space: MultiDiscrete | MultiBinary, value: Any, where: str
) -> NDArray[np.int64]:
    array = (
        value
        if isinstance(value, np.ndarray)
        else _from_plain(value, np.dtype(np.int64), space, where)
    )
    if array.dtype.kind not in "iub":
        raise Mismatch(str(space), f"dtype {array.dtype}", where)
    nvec = (2,) * space.n if isinstance(space, MultiBinary) else space.nvec
    if array.shape != (len(nvec),):
        raise Mismatch(str(space), f"shape {array.shape}", where)
    if ((array < 0) | (array >= np.asarray(nvec))).any():
        raise Mismatch(str(space), str(array.tolist()), where)
    return array.astype(np.int64)


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return f"{type(value).__name__} {str(value)[:40]!r}"


def sample(space: Space, rng: np.random.Generator) -> Any:
    """Draws a uniform random value of `space`; unbounded Box elements are standard normal."""
    if isinstance(space, Box):
        low, high = bounds(space)
        drawn = rng.standard_normal(space.shape)
        finite = np.isfinite(low) & np.isfinite(high)
        drawn = np.where(
            finite,
            rng.uniform(np.where(finite, low, 0.0), np.where(finite, high, 1.0)),
            np.clip(drawn, low, high),
        )
        return drawn.astype(space.dtype)
    if isinstance(space, Discrete):
        return int(rng.integers(space.n)) + space.start
    if isinstance(space, MultiDiscrete):
        return rng.integers(np.asarray(space.nvec))
    if isinstance(space, MultiBinary):
        return rng.integers(2, size=space.n)
    if isinstance(space, DictSpace):
        return {key: sample(sub, rng) for key, sub in space.spaces.items()}
    return tuple(sample(sub, rng) for sub in space.spaces)


def available_actions(space: Space, observation: Any) -> NDArray[np.int64] | None:
    """Returns the actions that an observation's action mask allows, None if it has no mask.

    Args:
        space: of the actions; only those of a Discrete can be masked.
        observation: a conforming one.

    Raises:
        ValueError: the mask allows none.
    """
    if not isinstance(space, Discrete) or not isinstance(observation, dict):
        return None
    mask = observation.get(ACTION_MASK_KEY)
    if mask is None:
        return None
    allowed = np.flatnonzero(mask)
    if not len(allowed):
        raise ValueError("the action mask forbids every action")
    return allowed + space.start


def sample_action(space: Space, observation: Any, rng: np.random.Generator) -> Any:
    """Draws a uniform random action of `space`, among the available ones if there is a mask.

    Raises:
        ValueError: as `available_actions`.
    """
    allowed = available_actions(space, observation)
    return sample(space, rng) if allowed is None else int(rng.choice(allowed))


def bounds(space: Box) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns `low` and `high` of a Box as float64 arrays of its shape, infinite if unbounded."""

    def filled(bound: Bound, missing: float) -> NDArray[np.float64]:
        if bound is None:
            return np.full(space.shape, missing)
        flat = np.asarray(bound, dtype=object)
        numbers = np.array([missing if x is None else float(x) for x in flat.ravel()])
        return np.broadcast_to(numbers.reshape(flat.shape), space.shape)

    return filled(space.low, -math.inf), filled(space.high, math.inf)


def from_gymnasium(space: Any) -> Space:
    """Returns the plain form of a Gymnasium space, told by its class name.

    Raises:
        TypeError: a kind of space that the protocol does not carry (Text, Graph, Sequence).
    """
    kind = type(space).__name__
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
    raise TypeError(
        f"the space {space} cannot travel: known are Box, Discrete, MultiDiscrete and "
        "MultiBinary of one dimension (counted from 0), Dict and Tuple"
    )


def _plain_bound(bound: NDArray[Any]) -> Bound:
    array = np.asarray(bound, dtype=np.float64)
    if array.size == 0:
        return None
    first = float(array.flat[0])
    if (array == first).all():
        return first if math.isfinite(first) else None

    def plain(x: Any) -> Any:
        return (
            [plain(item) for item in x]
            if isinstance(x, list)
            else (x if math.isfinite(x) else None)
        )

    result: Bound = plain(array.tolist())
    return result
