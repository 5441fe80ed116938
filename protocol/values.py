"""Values of a space: checked when they come from outside, and drawn at random.

`conform` is the only place where a value from outside becomes an array, and `number` where one
becomes a number; whichever way it came, through an adapter, a client or JSON, they judge it by what
it means.
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
"""Of a Dict that does not fit, in a message."""
_MAX_VALUE_CHARS = 80
"""Of another value: enough for why a tensor is no array."""


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
    """A value fits a space, but for a number that is not finite, or beyond a limit."""


def conform(space: Space, value: Any, where: str = "", most: float = math.inf) -> Any:
    """Returns `value` as the array, integer, dict or tuple that `space` describes.

    Numbers, nested lists, arrays and tensors (whatever has `__array__`) become arrays of the
    space's dtype if that loses no meaning: whole numbers for integers, any real ones for floats.
    One number is one, in brackets or not. No copy is made of an array that fits as it is.

    Args:
        space: what was declared.
        value: what came: array, tensor, number, nested list, dict.
        where: path so far, for the message.
        most: largest real number in a Box, up or down.

    Raises:
        Mismatch: wrong type, shape or keys; NaN; infinity; a fraction where integers are meant; a
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
            value = {str(key): part for key, part in value.items()}  # as JSON has them
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
    """Returns the one finite number that a value is: a reward, or a metric.

    Raises:
        Mismatch: it is none: null, a text, several numbers, NaN or infinity.
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
        Mismatch: there is none: a tensor is on a GPU, say, or has a gradient.
    """
    try:
        return np.asarray(value)
    except Exception as error:  # noqa: BLE001 - of whichever library the tensor is
        raise Mismatch("an array", f"{type(value).__name__}: {error}") from None


def _conform_array(
    space: Space,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    value: Any,
    where: str,
    most: float = math.inf,
) -> NDArray[Any]:
    """Returns an array of this dtype and shape."""
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
    """Whether all numbers of an array are finite, and at most so large, up or down."""
    if array.dtype.kind != "f":
        return True
    # One pass over the data: no element is larger than the root of the sum of squares, and that is
    # finite only if all are.
    flat = array if array.ndim == 1 else array.reshape(-1)
    if float(flat.dot(flat)) < most * most:
        return True
    return bool(np.isfinite(array).all() and (np.abs(array) <= most).all())


def _cast(array: NDArray[Any], dtype: np.dtype[Any], space: Space, where: str) -> NDArray[Any]:
    """Returns an array in another dtype, if its numbers stay what they are, but for rounding."""
    if array.dtype.kind == "O":
        array = _array_of(array.tolist(), dtype, array.shape, space, where)
    if array.dtype.kind not in "fiub":
        raise Mismatch(f"dtype {dtype}", f"dtype {array.dtype}", where)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):  # becomes infinite, which `_conform_array` refuses
            return array.astype(dtype)
    if array.size and not np.can_cast(array.dtype, dtype):
        if array.dtype.kind == "f":
            _check_numbers(array, where, math.inf)
            if (array != np.trunc(array)).any():
                raise Mismatch(f"dtype {dtype}", "fractional numbers", where)
        least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        # Compared as Python's integers: numpy's do not compare with all of them.
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
            hint = "" if name else "limits.max_abs_observation; is it a mistake, or to scale down?"
            raise Unsound(expected, f"{got} at index {list(map(int, at))}", where, hint)


def _array_of(
    value: Any,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    space: Space,
    where: str,
    index: tuple[int, ...] = (),
) -> NDArray[Any]:
    """Returns what is no array as one, of any dtype of numbers.

    Lengths and kinds are compared before numpy sees them. Of a long list of short ones it would
    make a large array first; of a text among numbers, an array with room for that text in every
    place.
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
    """Returns what is in nested lists of these lengths; None: they are of others."""
    row = [value]
    for size in shape:
        if not _LISTS.issuperset(map(type, row)) or not {size}.issuperset(map(len, row)):
            return None
        row = row[0] if len(row) == 1 else list(chain.from_iterable(row))
    return row


def _numbers(row: list[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Returns a list of numbers as an array; None if there is anything else among them."""
    if row and not isinstance(row[0], np.ndarray):
        code = "q" if dtype.kind != "f" else "f" if dtype.char == "f" else "d"
        with contextlib.suppress(TypeError, OverflowError):
            return np.frombuffer(arrays.array(code, row), code)
    is_plain = all(issubclass(kind, _NUMBER) for kind in set(map(type, row)))
    return np.array(row) if is_plain else None


def _bare(value: Any) -> Any:
    """Returns what is in brackets around one number, a tensor's too; else the value as it is."""
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
    # Without a sign, negative numbers are large.
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

    Integers without a bound end where their dtype ends.
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

    None without a mask.

    Args:
        space: of the actions.
        observation: a conforming one. Its mask has a number for each action of the first choice,
            above 0 for an available one, then of the next; or it is a Tuple of one mask for each.

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
    allowed = [np.flatnonzero(m > 0) + low for m, (low, _) in zip(split, parts, strict=True)]
    if not all(map(len, allowed)):
        raise Mismatch("a mask with at least one action available", "the mask forbids every action")
    return allowed


def check_available(space: Space, observation: Any, action: Any) -> None:
    """Raises `Mismatch` if an observation's mask forbids a conforming action."""
    allowed = available_actions(space, observation)
    if allowed is None:  # of spaces, too, whose values have parts of several shapes
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
