"""The base class of replays, and their columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from muxrl.servers.agents.keys import BINARY_KEYS
from muxrl.servers.algorithms.replay.priorities import Priorities
from muxrl.servers.episodes.trajectories import Trajectory

ROWS = "rows"
"""Places in the replay of a batch's entries, if it was drawn by priority, ``[B]`` int64."""
WEIGHTS = "weights"
"""Weights of the entries in the loss, RLlib's name of the column, ``[B]`` float32."""


class Replay(ABC):
    """Keeps the newest entries of one policy; the oldest is replaced first.

    Attributes:
        unit: of the entries: "steps" of a seat, or its "episodes".

    Args:
        capacity: in entries.
        seed: of the sampling.
        priorities: of the entries, for sampling; None: entries are drawn uniformly.
    """

    unit: ClassVar[str]

    def __init__(self, capacity: int, seed: int | None, priorities: Priorities | None) -> None:
        self._capacity = capacity
        self._priorities = priorities
        self._rng = np.random.default_rng(seed)
        self._columns: dict[str, np.ndarray] = {}

    @abstractmethod
    def __len__(self) -> int:
        """Returns the number of stored entries."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes of the stored entries."""

    @abstractmethod
    def add(self, *trajectories: Trajectory) -> int:
        """Stores trajectories of seats, one after another.

        Returns:
            The number of new entries, 0 if no trajectory has a step.
        """

    @abstractmethod
    def sample(self, num: int) -> dict[str, Any]:
        """Draws entries; at least one must be stored.

        Args:
            num: number of entries.

        Returns:
            Arrays by RLlib's column names, which share no memory with the replay; see the class.
        """

    def update_priorities(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Sets the priorities of the last sample's entries; see `Priorities.update`."""
        assert self._priorities is not None, f"{self.unit} are drawn uniformly"
        self._priorities.update(rows, values)

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Returns everything that is stored, as plain values and arrays."""

    @abstractmethod
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Loads a state into this replay, which must be empty.

        Raises:
            ValueError: the state does not fit, or is of an earlier version.
        """


def columns_of(name: str, value: Any) -> dict[str, np.ndarray]:
    """Returns the arrays of a value by column: ``NAME.KEY`` for a dict's parts, else `name`."""
    if isinstance(value, Mapping):
        return {f"{name}.{key}": part for key, part in value.items()}
    return {name: value}


def value_of(name: str, columns: Mapping[str, np.ndarray]) -> Any:
    """Returns a value from its columns, as named by `columns_of`."""
    if name in columns:
        return columns[name]
    prefix = f"{name}."
    return {k.removeprefix(prefix): v for k, v in columns.items() if k.startswith(prefix)}


def stored_dtype(name: str, array: np.ndarray) -> type[np.generic]:
    """Returns the dtype in which a column is stored: bool, int64 for integers, or float32."""
    if name.rpartition(".")[2] in BINARY_KEYS:
        return np.bool_
    return np.int64 if array.dtype.kind in "iu" else np.float32


def read(column: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns rows of a column as networks read them, float32 or int64."""
    drawn: np.ndarray = column[rows]
    return drawn.astype(np.float32) if drawn.dtype == np.bool_ else drawn
