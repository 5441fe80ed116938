"""A simulation around another one: what swaps sides, records or films changes one thing of it."""

from __future__ import annotations

from typing import Any


class Around:
    """A simulation, ordinary or in arrays, with another one inside, which does all the rest."""

    def __init__(self, simulation: Any) -> None:
        self._inside = simulation

    def __getattr__(self, name: str) -> Any:
        """Returns what this one does not do itself, and what not every simulation has."""
        return getattr(self._inside, name)
