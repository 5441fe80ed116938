"""Measures how long a simulation has been in one call, to find steps that never return.

Nothing else shows such a step: the simulation's process lives and reports, the servers wait and are
well, and the run stands still.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_CALLS = ("reset", "step", "state")


class StepClock:
    """Times the calls of the simulations of one process; may be read from any thread."""

    def __init__(self) -> None:
        self._called_at: float | None = None

    def watch(self, simulation: T) -> T:
        """Times the calls of a simulation from now on; returns the simulation."""
        for name in _CALLS:
            setattr(simulation, name, self._clocked(getattr(simulation, name)))
        return simulation

    @property
    def step_s(self) -> float:
        """Seconds since the current call began; 0 if there is none."""
        called_at = self._called_at
        return 0.0 if called_at is None else time.monotonic() - called_at

    def _clocked(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def clocked(*args: Any, **kwargs: Any) -> Any:
            self._called_at = time.monotonic()
            try:
                return call(*args, **kwargs)
            finally:
                self._called_at = None

        return clocked
