"""How long a simulation has been in one call: a step that never returns looks like no other fault.

Its process lives and gives its reports, its servers wait and are well, and the run stands still.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_CALLS = ("reset", "step", "state")


class StepClock:
    """Clocks calls of the simulations of one process; to be read from any thread."""

    def __init__(self) -> None:
        self._called_at: float | None = None

    def watch(self, simulation: T) -> T:
        """Has the calls of a simulation be clocked; returns it."""
        for name in _CALLS:
            setattr(simulation, name, self._clocked(getattr(simulation, name)))
        return simulation

    @property
    def step_s(self) -> float:
        """Seconds since the call that has not returned yet; 0 if there is none."""
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
