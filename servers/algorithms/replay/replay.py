"""What replays have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from muxrl.servers.agents.keys import BINARY_KEYS
from muxrl.servers.algorithms.replay.priorities import Priorities
from muxrl.servers.episodes.trajectories import Trajectory

ROWS = "rows"
"""Of a batch that was drawn by priority: where its entries are in the replay, ``[B]`` int64."""
WEIGHTS = "weights"
"""Weights of entries in the loss, as RLlib's DQN calls the column, ``[B]`` float32."""


class Replay(ABC):
    """The newest entries of one policy; the oldest is replaced first.

    Attributes:
        unit: steps of a seat, or its episodes.

    Args:
        capacity: in entries.
        seed: of the sampling.
        priorities: by which entries are drawn; None: uniformly.
    """

    unit: ClassVar[str]

    def __init__(self, capacity: int, seed: int | None, priorities: Priorities | None) -> None:
        self._capacity = capacity
        self._priorities = priorities
        self._rng = np.random.default_rng(seed)
        self._columns: dict[str, np.ndarray] = {}

    @abstractmethod
    def __len__(self) -> int:
        """The number of entries stored."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Size of what is stored."""

    @abstractmethod
    def add(self, *trajectories: Trajectory) -> int:
        """Stores seats' trajectories, one after another.

        Returns:
            The number of entries that they made, 0 if they have no step.
        """

    @abstractmethod
    def sample(self, num: int) -> dict[str, Any]:
        """Draws so many entries of those that are stored, of which there must be one.

        Returns:
            Arrays by RLlib's column names, of their own memory; see the class.
        """

    def update_priorities(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Sets the priorities of entries of the last `sample`; see `Priorities.update`."""
        assert self._priorities is not None, f"{self.unit} are drawn uniformly"
        self._priorities.update(rows, values)

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Returns all that is stored, as plain values and arrays."""

    @abstractmethod
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues, empty as it is, as the replay whose state it is.

        Raises:
            ValueError: it does not fit, or is of an earlier version.
        """


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
