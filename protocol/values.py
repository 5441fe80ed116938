"""Checks values that come from outside against spaces, and draws random ones.

Only `conform` turns a value from outside into an array, and only `number` turns one into a number.
They judge a value by its meaning, whether it came through an adapter, a client or JSON.
"""

from __future__ import annotations

import array as arrays
import contextlib
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
    typed_bounds,
)

_MAX_KEYS = 20
_MAX_KEY_CHARS = 40
"""Bounds of the shown keys of a Dict that does not fit, in an error's text."""
_MAX_VALUE_CHARS = 80
"""Bound of another shown value: enough to say why a tensor is no array."""


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


class Unsound(Mismatch):
    """A value would fit a space, but a number in it is not finite, or beyond a limit."""


def conform(space: Space, value: Any, where: str = "", most: float = math.inf) -> Any:
    """Returns `value` as the array, integer, dict or tuple that `space` describes.

    Numbers, nested lists, arrays and tensors (all objects with `__array__`) become arrays of the
    space's dtype if no meaning is lost: integers from whole numbers, floats from any real numbers.
    Brackets around a single number do not matter. An array that fits is returned without a copy.

    Args:
        space: the declared space.
        value: an array, tensor, number, nested list or dict.
        where: path of the value so far, for the error's text.
        most: largest absolute value of a real number in a Box.

    Raises:
        Mismatch: wrong type, shape or keys; NaN; infinity; a fraction instead of an integer; a
            number out of range. The bounds of a Box are not checked: simulations overstep them by
            rounding.
    """
    if isinstance(space, Box):
        return _conform_array(space, _dtype(space.dtype), space.shape, value, where, most)
    if isinstance(space, Discrete):
        return _conform_discrete(space, value, where)
    if isinstance(space, MultiDiscrete | MultiBinary):
        return _conform_integers(space, value, where)
    if isinstance(space, DictSpace):
        if not isinstance(value, dict):
            raise Mismatch(str(space), _kind(value), where)
        if value.keys() != space.spaces.keys() and len(value) == len(space.spaces):
            value = {str(key): part for key, part in value.items()}  # JSON keys are text
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
_array = functools.lru_cache(maxsize=64)(np.array)


def number(value: Any) -> float:
    """Returns a value, such as a reward or a metric, as one finite number.

    Raises:
        Mismatch: the value is null, text, several numbers, NaN or infinity.
    """
    bare = _bare(value)
    if isinstance(bare, int | float):
        with contextlib.suppress(OverflowError):
            if math.isfinite(one := float(bare)):
                return one
    raise Mismatch("a finite number", _kind(value))


def as_array(value: Any) -> NDArray[Any]:
    """Returns a number or a tensor as an array.

    Raises:
        Mismatch: it cannot become an array: a tensor is on a GPU, say, or has a gradient.
    """
    try:
        return np.asarray(value)
    except Exception as error:  # noqa: BLE001 - depends on the tensor's library
        raise Mismatch("an array", f"{type(value).__name__}: {error}") from None


def _conform_array(
    space: Space,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    value: Any,
    where: str,
    most: float = math.inf,
) -> NDArray[Any]:
    """Returns a value as an array of this dtype and shape."""
    if isinstance(value, np.ndarray):
        array = value
    elif math.prod(shape) == 1:  # a number in any brackets
        array = _array_of(_bare(value), dtype, (), space, where)
    else:
        array = _array_of(value, dtype, shape, space, where)
    if array.dtype != dtype:
        array = _cast(array, dtype, space, where)
    if array.shape != shape:
        if array.size != 1 or math.prod(shape) != 1:
            raise Mismatch(str(space), f"shape {array.shape}", where)
        array = array.reshape(shape)
    if not within(array, most):
        _check_numbers(array, where, most)
    return array


def within(array: NDArray[Any], most: float) -> bool:
    """Whether all numbers of an array are finite, with absolute values of at most `most`."""
    if array.dtype.kind != "f":
        return True
    # One pass over the data: no element is larger than the root of the sum of squares, which is
    # finite only if all elements are.
    flat = array if array.ndim == 1 else array.reshape(-1)
    if float(flat.dot(flat)) < most * most:
        return True
    return bool(np.isfinite(array).all() and (np.abs(array) <= most).all())


def _cast(array: NDArray[Any], dtype: np.dtype[Any], space: Space, where: str) -> NDArray[Any]:
    """Returns an array in another dtype, if its numbers stay the same apart from rounding."""
    if array.dtype.kind == "O":
        array = _array_of(array.tolist(), dtype, array.shape, space, where)
    if array.dtype.kind not in "fiub":
        raise Mismatch(f"dtype {dtype}", f"dtype {array.dtype}", where)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):  # `_conform_array` refuses the infinity
            return array.astype(dtype)
    if array.size and not np.can_cast(array.dtype, dtype):
        if array.dtype.kind == "f":
            _check_numbers(array, where, math.inf)
            if (array != np.trunc(array)).any():
                raise Mismatch(f"dtype {dtype}", "fractional numbers", where)
        least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        # Compared as Python's integers, since numpy's cannot be compared with all of these.
        if int(array.min()) < least or int(array.max()) > most:
            raise Mismatch(f"dtype {dtype}", f"numbers beyond {least}..{most}", where)
    return array.astype(dtype)


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
            cause = "is it a mistake, or should observations be scaled down?"
            hint = "" if name else f"limits.max_abs_observation; {cause}"
            raise Unsound(expected, f"{got} at index {list(map(int, at))}", where, hint)


def _array_of(
    value: Any,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    space: Space,
    where: str,
    index: tuple[int, ...] = (),
) -> NDArray[Any]:
    """Returns a value that is no array as one, of any dtype of numbers.

    Lengths and types are checked before numpy gets the value. Numpy would first make a large array
    from a long list of wrong length, and from numbers with a text among them an array with room for
    that text in every element.
    """
    at = f" at index {list(index)}" if index else ""
    flat = _flat(value, shape)
    array = None if flat is None else _numbers(flat, dtype)
    if array is not None:
        array = array.reshape(shape)
    elif hasattr(value, "__array__"):
        try:
            array = as_array(value)
        except Mismatch as error:
            raise Mismatch(str(space), f"{error.got}{at}", where) from None
        if index and array.shape != shape:
            raise Mismatch(str(space), f"shape {array.shape}{at}", where)
    if array is not None and array.dtype.kind in "fiub":
        return array
    if not (_is_list(value) and shape and len(value) == shape[0]):
        got = _kind(value)
        if _is_list(value) and not any(map(_is_list, value[:1])):
            got = f"shape ({len(value)},)"
        elif isinstance(value, int) and not shape:
            got = "an integer beyond 64 bits"
        raise Mismatch(str(space), f"{got}{at}", where)
    parts = [
        _array_of(part, dtype, shape[1:], space, where, (*index, i)) for i, part in enumerate(value)
    ]
    return np.array(parts)


def _flat(value: Any, shape: tuple[int, ...]) -> list[Any] | None:
    """Returns the elements of nested lists of these lengths; None if they have other lengths."""
    row = [value]
    for size in shape:
        if not _LISTS.issuperset(map(type, row)) or not {size}.issuperset(map(len, row)):
            return None
        row = row[0] if len(row) == 1 else list(chain.from_iterable(row))
    return row


def _numbers(row: list[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Returns a list of numbers as an array; None if it has anything else in it."""
    if row and not isinstance(row[0], np.ndarray):
        code = "q" if dtype.kind != "f" else "f" if dtype.char == "f" else "d"
        with contextlib.suppress(TypeError, OverflowError):
            return np.frombuffer(arrays.array(code, row), code)
    is_plain = all(issubclass(kind, _NUMBER) for kind in set(map(type, row)))
    return np.array(row) if is_plain else None


def _bare(value: Any) -> Any:
    """Returns the number in a list or tensor of one element; any other value is unchanged."""
    while _is_list(value) and len(value) == 1:
        value = value[0]
    if hasattr(value, "__array__"):
        with contextlib.suppress(Mismatch):
            array = as_array(value)
            return array.item() if array.size == 1 else value
    return value


_LISTS = frozenset({list, tuple})
_NUMBER = (int, float, np.number, np.bool_)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _conform_discrete(space: Discrete, value: Any, where: str) -> int:
    one = value
    if type(value) is not int:
        one = _bare(value)
        if isinstance(one, float) and one.is_integer():
            one = int(one)
        if isinstance(one, bool) or not isinstance(one, int):
            raise Mismatch(str(space), _kind(value), where)
    if not space.start <= one < space.start + space.n:
        raise Mismatch(str(space), str(one)[:_MAX_KEY_CHARS], where)
    return one


def _conform_integers(
    space: MultiDiscrete | MultiBinary, value: Any, where: str
) -> NDArray[np.int64]:
    nvec = (2,) * space.n if isinstance(space, MultiBinary) else space.nvec
    array = _conform_array(space, _dtype("int64"), (len(nvec),), value, where)
    # Read as unsigned, negative numbers are large.
    if (array.view(np.uint64) >= _array(nvec, np.uint64)).any():
        raise Mismatch(str(space), str(array.tolist()), where)
    return array


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
    return f"{type(value).__name__} {str(value)[:_MAX_VALUE_CHARS]!r}"


def sample(space: Space, rng: np.random.Generator) -> Any:
    """Draws a uniform random value of `space`; unbounded numbers of a Box are standard normal.

    Integers without a bound are bounded by their dtype.
    """
    if isinstance(space, Box):
        dtype = _dtype(space.dtype)
        if dtype.kind != "f":
            first, last = typed_bounds(space)
            return rng.integers(first, last, space.shape, dtype.type, endpoint=True)
        low, high = bounds(space)
        drawn = rng.standard_normal(space.shape)
        finite = np.isfinite(low) & np.isfinite(high)
        uniform = rng.uniform(np.where(finite, low, 0.0), np.where(finite, high, 1.0))
        return np.where(finite, uniform, np.clip(drawn, low, high)).astype(dtype)
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

    Returns None without a mask.

    Args:
        space: of the actions.
        observation: a conforming observation. Its mask has a number for each action of the first
            choice, above 0 if the action is available, then for the next choice; or it is a Tuple
            with a mask for each choice.

    Raises:
        Mismatch: the mask allows no action, or has the wrong length.
    """
    mask = observation.get(ACTION_MASK_KEY) if isinstance(observation, dict) else None
    if mask is None or not (parts := choices(space)):
        return None
    flat = np.hstack([np.ravel(m) for m in mask]) if isinstance(mask, tuple) else np.ravel(mask)
    if len(flat) != sum(n for _, n in parts):
        raise Mismatch(f"an action mask for {space}", f"{len(flat)} numbers")
    split = np.split(flat, np.cumsum([n for _, n in parts])[:-1])
    allowed = [np.flatnonzero(m > 0) + low for m, (low, _) in zip(split, parts, strict=True)]
    if not all(map(len, allowed)):
        raise Mismatch("a mask with at least one action available", "the mask forbids every action")
    return allowed


def check_available(space: Space, observation: Any, action: Any) -> None:
    """Raises `Mismatch` if an observation's mask forbids a conforming action."""
    allowed = available_actions(space, observation)
    if allowed is None:  # also for spaces whose values are no single array
        return
    for chosen, available in zip(np.ravel(action), allowed, strict=False):
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
