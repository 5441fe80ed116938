"""Values of a space: checked when they come from outside, and drawn at random.

`conform` is the only place where a value from outside becomes an array.
"""

from __future__ import annotations

import array as arrays
import functools
import math
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxrl.protocol.spaces import (
    ACTION_MASK_KEY,
    Box,
    DictSpace,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    TupleSpace,
    bounds,
    choices,
)

_MAX_KEYS = 20
_MAX_KEY_CHARS = 40
"""Of a Dict that does not fit, in a message."""


class Mismatch(ValueError):
    """A value does not fit a space.

    Args:
        expected: the (sub-)space.
        got: what came instead.
        where: path of the sub-space inside a Dict or Tuple, "" at the top.
        hint: the likely cause, "" if none is known.
    """

    def __init__(self, expected: str, got: str, where: str = "", hint: str = "") -> None:
        self.expected = f"{where}: {expected}" if where else expected
        self.got = got
        self.hint = hint
        super().__init__(f"expected {self.expected}, got {got}" + (f" ({hint})" if hint else ""))


def conform(space: Space, value: Any, where: str = "", most: float = math.inf) -> Any:
    """Returns `value` as the array, integer, dict or tuple that `space` describes.

    Plain numbers and nested lists (all that JSON has) become arrays of the space's dtype;
    arrays must already be of a dtype that casts safely to it. No copy is made of an array
    that fits as it is.

    Args:
        space: what was declared.
        value: what came: array, number, nested list, dict.
        where: path so far, for the message.
        most: largest real number in a Box, up or down.

    Raises:
        Mismatch: wrong type, shape, dtype or keys; NaN; infinity; a number out of range. The
            bounds of a Box are not checked: simulations overstep them by rounding.
    """
    if isinstance(space, Box):
        return _conform_box(space, value, where, most)
    if isinstance(space, Discrete):
        return _conform_discrete(space, value, where)
    if isinstance(space, MultiDiscrete | MultiBinary):
        return _conform_integers(space, value, where)
    if isinstance(space, DictSpace):
        if not isinstance(value, dict):
            raise Mismatch(str(space), _kind(value), where)
        if value.keys() != space.spaces.keys():
            raise Mismatch(f"keys {sorted(space.spaces)}", f"keys {_shown_keys(value)}", where)
        return {
            key: conform(sub, value[key], f"{where}.{key}" if where else key, most)
            for key, sub in space.spaces.items()
        }
    if not _is_list(value) or len(value) != len(space.spaces):
        raise Mismatch(f"{len(space.spaces)} items", _kind(value), where)
    return tuple(
        conform(sub, item, f"{where}[{i}]", most)
        for i, (sub, item) in enumerate(zip(space.spaces, value, strict=True))
    )


_dtype = functools.lru_cache(maxsize=64)(np.dtype)


def _conform_box(space: Box, value: Any, where: str, most: float) -> NDArray[Any]:
    dtype = _dtype(space.dtype)
    if isinstance(value, np.ndarray):
        array = value
        if array.dtype != dtype and not np.can_cast(array.dtype, dtype, "safe"):
            hint = f"cast it with .astype(numpy.{space.dtype})" if array.dtype.kind in "fiu" else ""
            raise Mismatch(f"dtype {space.dtype}", f"dtype {array.dtype}", where, hint)
    else:
        array = _from_plain(value, dtype, space.shape, space, where)
    if array.shape != space.shape:
        raise Mismatch(str(space), f"shape {array.shape}", where)
    if array.dtype.kind == "f":
        # One pass over the data: no element is larger than the root of the sum of squares, and that
        # is finite only if all are. Where many make it large, the exact check finds nothing.
        flat = array if array.ndim == 1 else array.reshape(-1)
        if not float(flat.dot(flat)) < most * most:
            _check_numbers(array, where, most)
    return array if array.dtype == dtype else array.astype(dtype)


def _check_numbers(array: NDArray[Any], where: str, most: float) -> None:
    expected = "finite numbers" if most == math.inf else f"numbers from {-most:g} to {most:g}"
    for bad, name in (
        (np.isnan(array), "NaN"),
        (np.isinf(array), "infinity"),
        (np.abs(array) > most, ""),
    ):
        if bad.any():
            at = np.unravel_index(int(bad.argmax()), array.shape)
            got = name or f"{array[at]:g}"
            hint = "" if name else "limits.max_abs_observation; is it a mistake, or to scale down?"
            raise Mismatch(expected, f"{got} at index {list(map(int, at))}", where, hint)


def _from_plain(
    value: Any, dtype: np.dtype[Any], shape: tuple[int, ...], space: Space, where: str
) -> NDArray[Any]:
    is_list = _is_list(value)
    array = _from_list(value, dtype, shape, space, where) if is_list else np.asarray(value)
    if array.dtype == dtype:
        return array.reshape(shape) if is_list and len(shape) != 1 else array
    if array.dtype.kind not in "fiub":
        raise Mismatch(str(space), _kind(value), where)
    if dtype.kind in "iub" and array.dtype.kind == "f" and array.size:
        raise Mismatch(f"dtype {dtype}", "fractional numbers", where)
    if dtype.kind in "iu" and array.size:
        info = np.iinfo(dtype)
        # Compared as Python's integers: numpy's do not compare with all of them.
        if int(array.min()) < info.min or int(array.max()) > info.max:
            raise Mismatch(f"dtype {dtype}", f"numbers beyond {info.min}..{info.max}", where)
    with np.errstate(over="ignore"):  # becomes infinite, which `_conform_box` refuses
        array = array.astype(dtype)
    return array.reshape(shape) if is_list and len(shape) != 1 else array


def _from_list(
    value: Any, dtype: np.dtype[Any], shape: tuple[int, ...], space: Space, where: str
) -> NDArray[Any]:
    """Returns the numbers of nested lists in one dimension.

    Lengths and kinds are compared before numpy sees them. Of a long list of short ones it would
    make a large array first; of a text among numbers, an array with room for that text in every
    place.
    """
    row = value
    if len(shape) != 1 or len(value) != shape[0]:
        _check_shape(value, shape, space, where)
        for i, size in enumerate(shape[1:], start=1):
            kinds = set(map(type, row))
            if kinds == {np.ndarray} and {part.shape for part in row} == {shape[i:]}:
                return np.asarray(row)
            if not kinds <= _LISTS or set(map(len, row)) - {size}:
                raise Mismatch(str(space), "a ragged list", where)
            row = list(chain.from_iterable(row))
    if row and not isinstance(row[0], np.ndarray):
        code = "q" if dtype.kind != "f" else "f" if dtype.char == "f" else "d"
        try:
            return np.frombuffer(arrays.array(code, row), code)
        except (TypeError, OverflowError):
            pass  # something else is among them
    kinds = set(map(type, row))
    if not all(issubclass(kind, _NUMBER) for kind in kinds):
        _check_shape(value, shape, space, where)
        is_ragged = not kinds.isdisjoint(_LISTS)
        raise Mismatch(str(space), "a ragged list" if is_ragged else _odd_one(row, shape), where)
    array = np.asarray(row)
    if array.dtype.kind == "O":  # of integers beyond 64 bits
        raise Mismatch(str(space), _odd_one(row, shape), where)
    return array


def _odd_one(row: list[Any], shape: tuple[int, ...]) -> str:
    """Returns the first element that is no number, or else too large for one, and where it is."""
    is_number = [isinstance(element, _NUMBER) for element in row]
    if all(is_number):
        is_number = [not isinstance(n, int) or -(2**63) <= n < 2**64 for n in row]
    first = is_number.index(False) if False in is_number else 0
    what = "an integer beyond 64 bits" if isinstance(row[first], int) else _kind(row[first])
    return f"{what} at index {list(map(int, np.unravel_index(first, shape)))}"


def _check_shape(value: Any, shape: tuple[int, ...], space: Space, where: str) -> None:
    came = _shape_of(value)
    if came == shape:
        return
    # Looked at only in a list that is as long as it should be; another one may be of any length.
    if len(came) > 1 and shape and len(value) == shape[0] and len(set(map(_shape_of, value))) > 1:
        raise Mismatch(str(space), "a ragged list", where)
    raise Mismatch(str(space), f"shape {came}", where)


_LISTS = {list, tuple}
_NUMBER = (int, float, np.number, np.bool_)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _shape_of(value: Any) -> tuple[int, ...]:
    """Returns the lengths of nested lists, of each the first element's."""
    shape: list[int] = []
    while _is_list(value):
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return (*shape, *value.shape) if isinstance(value, np.ndarray) else tuple(shape)


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
    nvec = (2,) * space.n if isinstance(space, MultiBinary) else space.nvec
    array = (
        value
        if isinstance(value, np.ndarray)
        else _from_plain(value, np.dtype(np.int64), (len(nvec),), space, where)
    )
    if array.dtype.kind not in "iub":
        raise Mismatch(str(space), f"dtype {array.dtype}", where)
    if array.shape != (len(nvec),):
        raise Mismatch(str(space), f"shape {array.shape}", where)
    if ((array < 0) | (array >= np.asarray(nvec))).any():
        raise Mismatch(str(space), str(array.tolist()), where)
    return array.astype(np.int64)


def _shown_keys(value: dict[Any, Any]) -> str:
    shown = [str(key)[:_MAX_KEY_CHARS] for key in islice(value, _MAX_KEYS)]
    more = f" and {len(value) - _MAX_KEYS} more" if len(value) > _MAX_KEYS else ""
    return f"{sorted(shown)}{more}"


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if _is_list(value):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"dict with keys {_shown_keys(value)}"
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


def available_actions(space: Space, observation: Any) -> list[NDArray[np.int64]] | None:
    """Returns the actions that an observation's action mask allows, for each choice of `space`.

    None without a mask.

    Args:
        space: of the actions.
        observation: a conforming one. Its mask has a number for each action of the first choice,
            then of the next; or it is a Tuple of one mask for each.

    Raises:
        Mismatch: the mask leaves no action, or has another length.
    """
    mask = observation.get(ACTION_MASK_KEY) if isinstance(observation, dict) else None
    if mask is None or not (parts := choices(space)):
        return None
    flat = np.hstack([np.ravel(m) for m in mask]) if isinstance(mask, tuple) else np.ravel(mask)
    if len(flat) != sum(n for _, n in parts):
        raise Mismatch(f"an action mask for {space}", f"{len(flat)} numbers")
    split = np.split(flat, np.cumsum([n for _, n in parts])[:-1])
    allowed = [np.flatnonzero(m) + low for m, (low, _) in zip(split, parts, strict=True)]
    if not all(map(len, allowed)):
        raise Mismatch("a mask with at least one action available", "the mask forbids every action")
    return allowed


def check_available(space: Space, observation: Any, action: Any) -> None:
    """Raises `Mismatch` if an observation's mask forbids a conforming action."""
    allowed = available_actions(space, observation)
    for chosen, available in zip(np.ravel(action), allowed or (), strict=False):
        if chosen not in available:
            hint = f"its action mask forbids {chosen}"
            raise Mismatch(f"one of {available.tolist()}", str(action), hint=hint)


def sample_action(space: Space, observation: Any, rng: np.random.Generator) -> Any:
    """Draws a uniform random action of `space`, among the available ones if there is a mask.

    Raises:
        Mismatch: as `available_actions`.
    """
    allowed = available_actions(space, observation)
    if allowed is None:
        return sample(space, rng)
    drawn = [int(rng.choice(available)) for available in allowed]
    if isinstance(space, Discrete):
        return drawn[0]
    if isinstance(space, TupleSpace):
        return tuple(drawn)
    if isinstance(space, Box):
        return np.array(drawn, space.dtype).reshape(space.shape)
    return np.array(drawn)
