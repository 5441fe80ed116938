"""What replays of teams have in common: a ring of so many entries, and its place in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

ReplayUnit = Literal["steps", "episodes"]
"""What one entry is."""


class TeamReplay(ABC):
    """The last `capacity` entries of one module; the oldest is replaced first.

    Attributes:
        unit: steps of a team, or its episodes.

    Args:
        capacity: in entries.
        seed: of the sampling.
    """

    unit: ClassVar[ReplayUnit]

    def __init__(self, capacity: int, seed: int | None = None) -> None:
        self._capacity = capacity
        self._rng = np.random.default_rng(seed)
        self._next = 0
        self._num_stored = 0

    def __len__(self) -> int:
        """The number of entries stored."""
        return self._num_stored

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Size of what is stored."""

    @abstractmethod
    def add(self, episode: SingleAgentEpisode) -> int:
        """Stores the episode or chunk of one RLlib agent, a team.

        Returns:
            The number of entries that it made, 0 if it has no step.
        """

    @abstractmethod
    def sample(self, num: int) -> Any:
        """Draws so many entries, a dataclass with ``rewards``, ``num_steps`` and the like.

        Raises:
            ValueError: nothing is stored.
        """

    def get_state(self) -> dict[str, Any]:
        """Returns all that is stored, as plain values and arrays."""
        return {"next": self._next, "rng": self._rng.bit_generator.state}

    @abstractmethod
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on, empty as it is, as the replay whose state it is.

        Raises:
            ValueError: it is smaller than that one.
        """

    def _check_holds_any(self) -> None:
        if not self._num_stored:
            raise ValueError("the replay is empty: add an episode before sampling")

    def _advance(self, num: int) -> None:
        self._next = (self._next + num) % self._capacity
        self._num_stored = min(self._num_stored + num, self._capacity)

    def _set_place(self, num_stored: int, state: Mapping[str, Any]) -> None:
        """Takes over generator and place from the state of a replay with so many entries."""
        if num_stored > self._capacity:
            raise ValueError(
                f"{num_stored} {self.unit} were kept, and the replay now holds {self._capacity} "
                f"(buffer_capacity_{self.unit})"
            )
        self._rng.bit_generator.state = state["rng"]
        self._num_stored = num_stored
        # With a larger capacity the oldest is no longer the next to go.
        self._next = int(state["next"]) if num_stored == self._capacity else num_stored
