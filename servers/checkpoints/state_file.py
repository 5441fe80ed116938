"""Stores a tree of plain values and numpy arrays in one file, without pickle.

The file is numpy's ``.npz``. It holds the arrays, and the tree as JSON, where numbers stand for
arrays. Python's JSON keeps integers of any length, as random generators have, and every digit of a
float.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

_TREE = "tree"
_ARRAY, _TUPLE = "@array", "@tuple"


def write_state(path: Path, state: Any) -> None:
    """Writes a tree of dicts with text keys, lists, tuples, numbers, texts, None and arrays.

    Raises:
        TypeError: the tree has a value of another type.
        OSError: the file cannot be written.
    """
    arrays: list[np.ndarray] = []
    text = json.dumps(_without_arrays(state, arrays))
    with path.open("wb") as file:
        np.savez(
            file,
            allow_pickle=False,
            **{_TREE: np.frombuffer(text.encode(), np.uint8)},
            **{str(i): array for i, array in enumerate(arrays)},
        )


def read_state(path: Path) -> Any:
    """Reads a tree that `write_state` wrote.

    Raises:
        ValueError: the file is broken.
        OSError: the file cannot be read.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return _with_arrays(json.loads(arrays[_TREE].tobytes()), arrays)
    except (zipfile.BadZipFile, KeyError, EOFError, ValueError) as error:
        raise ValueError(f"{str(path)!r} is broken: {error}") from error


def _without_arrays(value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError(f"an array of dtype {value.dtype} cannot be saved")
        arrays.append(value)
        return {_ARRAY: len(arrays) - 1}
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"a dict with keys {list(value)[:3]}, not all strings, cannot be saved")
        return {key: _without_arrays(entry, arrays) for key, entry in value.items()}
    if isinstance(value, tuple):
        return {_TUPLE: [_without_arrays(entry, arrays) for entry in value]}
    if isinstance(value, list):
        return [_without_arrays(entry, arrays) for entry in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a {type(value).__name__} cannot be saved")


def _with_arrays(value: Any, arrays: Any) -> Any:
    if isinstance(value, list):
        return [_with_arrays(entry, arrays) for entry in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_ARRAY}:
        return arrays[str(value[_ARRAY])]
    if value.keys() == {_TUPLE}:
        return tuple(_with_arrays(entry, arrays) for entry in value[_TUPLE])
    return {key: _with_arrays(entry, arrays) for key, entry in value.items()}
