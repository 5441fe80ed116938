"""What replays store: the arrays of an observation or an action by name, and of which numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from muxrl.servers.agents.keys import BINARY_KEYS


def columns_of(name: str, value: Any) -> dict[str, np.ndarray]:
    """Returns the arrays of a value: of a dict's part ``NAME.KEY``, else `name`."""
    if isinstance(value, Mapping):
        return {f"{name}.{key}": part for key, part in value.items()}
    return {name: value}


def value_of(name: str, columns: Mapping[str, np.ndarray]) -> Any:
    """Returns the value whose arrays `columns_of` has named."""
    if name in columns:
        return columns[name]
    prefix = f"{name}."
    return {k.removeprefix(prefix): v for k, v in columns.items() if k.startswith(prefix)}


def stored_dtype(name: str, array: np.ndarray) -> type[np.generic]:
    """Returns of what dtype a column is: bool, int64 for integers, or float32."""
    if name.rpartition(".")[2] in BINARY_KEYS:
        return np.bool_
    return np.int64 if array.dtype.kind in "iu" else np.float32


def read(column: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns rows of a column as networks read them: float32, or int64."""
    drawn: np.ndarray = column[rows]
    return drawn.astype(np.float32) if drawn.dtype == np.bool_ else drawn
