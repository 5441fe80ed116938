"""Turns a trainer's state into plain values, which a checkpoint can hold without pickle, and back.

`muxrl.servers.checkpoints.state_file` writes dicts with text keys, and arrays. PyTorch's tensors,
and dicts with other keys (an optimizer's ``state_dict``), are turned into these and back.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np

_TENSOR, _ITEMS, _BYTES = "@tensor", "@items", "@bytes"


def to_plain(value: Any, path: str = "state") -> Any:
    """Returns a state as plain values; arrays are copied, so that later changes do not matter.

    Raises:
        TypeError: a part is no number, text, array, tensor, None, dict, list or tuple; the
            sentence says where it is.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError(f"{path} is an array of objects ({value.dtype})")
        return value.copy()
    if value is None or isinstance(value, bool | int | float | str | np.generic):
        return value
    if isinstance(value, bytes):
        return {_BYTES: np.frombuffer(value, np.uint8)}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: to_plain(v, f"{path}[{key!r}]") for key, v in value.items()}
        items = [[to_plain(k, path), to_plain(v, f"{path}[{k!r}]")] for k, v in value.items()]
        return {_ITEMS: items}
    if isinstance(value, list):
        return [to_plain(v, f"{path}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, tuple):
        return tuple(to_plain(v, f"{path}[{i}]") for i, v in enumerate(value))
    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
        return {_TENSOR: value.detach().cpu().numpy().copy()}
    raise TypeError(
        f"{path} is {type(value).__name__}, which a checkpoint cannot hold; give numbers, texts, "
        "arrays or tensors, in dicts, lists and tuples (of a numpy generator its "
        "bit_generator.state)"
    )


def from_plain(value: Any) -> Any:
    """Undoes `to_plain`; tensors come back on the CPU."""
    if isinstance(value, list):
        return [from_plain(v) for v in value]
    if isinstance(value, tuple):
        return tuple(from_plain(v) for v in value)
    if not isinstance(value, dict):
        return value
    if value.keys() == {_TENSOR}:
        return importlib.import_module("torch").from_numpy(value[_TENSOR].copy())
    if value.keys() == {_BYTES}:
        return value[_BYTES].tobytes()
    if value.keys() == {_ITEMS}:
        return {from_plain(k): from_plain(v) for k, v in value[_ITEMS]}
    return {key: from_plain(v) for key, v in value.items()}


Path = tuple[Any, ...]
"""The keys and indices that lead to a part of a state."""


def leaves(state: Any) -> Iterator[tuple[Path, Any]]:
    """Yields the parts of a state, plain or not, that are no dict, list or tuple, with paths."""
    left: list[tuple[Path, Any]] = [((), state)]
    while left:
        path, value = left.pop()
        if isinstance(value, dict):
            items = value[_ITEMS] if value.keys() == {_ITEMS} else value.items()
        elif isinstance(value, list | tuple):
            items = enumerate(value)
        else:
            yield path, value
            continue
        left += reversed([((*path, key), part) for key, part in items])


def shown(path: Path) -> str:
    """Returns a path as in Python code, "['net'][0]"."""
    return "".join(f"[{key!r}]" for key in path if key != _TENSOR)


def shapes_of(state: Any) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a plain state's arrays and tensors by path, such as "net.bias"."""
    arrays = ((path, one) for path, one in leaves(state) if isinstance(one, np.ndarray))
    return {".".join(str(key) for key in path if key != _TENSOR): a.shape for path, a in arrays}


def find_not_finite(state: Any) -> str:
    """Returns the path of a tensor with NaN or infinity in a plain state; "" if there is none.

    Arrays may have such numbers: a buffer that is not filled yet, a best value so far.
    """
    for path, one in leaves(state):
        if _TENSOR in path and one.dtype.kind == "f" and not np.isfinite(one).all():
            return f"state{shown(path)}"
    return ""
