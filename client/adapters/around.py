"""Base of simulations that wrap another one: to swap sides, to record or to film it."""

from __future__ import annotations

from typing import Any


class Around:
    """A simulation, ordinary or vectorised, that forwards to the one inside by default."""

    def __init__(self, simulation: Any) -> None:
        self._inside = simulation

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the simulation inside, which not every simulation need have."""
        return getattr(self._inside, name)
