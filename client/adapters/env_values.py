"""Converts values between an environment and the protocol: a reader and a writer by space."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from muxrl.protocol.spaces import kind_of

Reader = Callable[[Any], Any]
"""Converts an environment's observation to plain data."""
Writer = Callable[[Any], Any]
"""Converts a plain action to one that the environment accepts."""


def as_it_is(value: Any) -> Any:
    """A reader or writer for values that are plain already."""
    return value


def reader(space: Any) -> Reader:
    """Returns the function that converts an observation in Gymnasium's `space` to plain data.

    Arrays are copied, since many environments write each step into the same buffer, and float
    arrays get the declared width. Anything else that is wrong is left unchanged: the server refuses
    it and names the agent.
    """
    kind = kind_of(space)
    if kind == "Box" and np.dtype(space.dtype).kind == "f":
        dtype = np.dtype(space.dtype)

        def read_floats(value: Any) -> Any:
            if type(value) is np.ndarray and value.dtype is dtype:
                return value.copy()
            is_float = isinstance(value, np.ndarray) and value.dtype.kind == "f"
            if is_float and value.dtype != dtype:
                with np.errstate(over="ignore"):  # infinities are refused by servers
                    return value.astype(dtype)
            return _read_array(value)

        return read_floats
    if kind == "Discrete":
        return _read_integer
    if kind == "Dict":
        readers = {str(key): reader(sub) for key, sub in space.spaces.items()}

        def read_dict(value: Any) -> Any:
            if not isinstance(value, Mapping):
                return value
            return {
                str(key): readers.get(str(key), as_it_is)(item)  # the server refuses a wrong key
                for key, item in value.items()
            }

        return read_dict
    if kind == "Tuple":
        items = tuple(reader(sub) for sub in space.spaces)

        def read_tuple(value: Any) -> Any:
            if not isinstance(value, list | tuple) or len(value) != len(items):
                return value
            return tuple(read(item) for read, item in zip(items, value, strict=True))

        return read_tuple
    return _read_array


def _read_integer(value: Any) -> Any:
    if isinstance(value, np.integer) or (
        isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "iu"
    ):
        return int(value)
    return value


def _read_array(value: Any) -> Any:
    """Returns an array, or a list or a tensor, that its environment cannot change."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list):
        return copy.deepcopy(value)
    return value.clone() if hasattr(value, "clone") else value


def writer(space: Any) -> Writer:
    """Returns the function that converts a plain action to one of Gymnasium's `space`.

    An array is copied in the space's dtype: Gymnasium's `contains` refuses a wider dtype, and
    arrays from the network are read-only, which an environment may not expect.
    """
    kind = kind_of(space)
    if kind == "Discrete":
        return as_it_is
    if kind == "Dict":
        writers = {key: (str(key), writer(sub)) for key, sub in space.spaces.items()}
        return lambda action: {k: write(action[name]) for k, (name, write) in writers.items()}
    if kind == "Tuple":
        items = tuple(writer(sub) for sub in space.spaces)
        return lambda action: tuple(w(item) for w, item in zip(items, action, strict=True))
    dtype = np.dtype(space.dtype)
    return lambda action: np.array(action, dtype=dtype)
