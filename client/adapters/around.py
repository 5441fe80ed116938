"""A simulation around another one: what swaps sides, records or films changes one thing of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from muxrl.client.adapters.simulation import Simulation, StepResult


class Around:
    """A simulation with another one inside, which does all the work."""

    def __init__(self, simulation: Simulation) -> None:
        self._inside = simulation
        self.possible_agents = simulation.possible_agents
        self.observation_spaces = simulation.observation_spaces
        self.action_spaces = simulation.action_spaces
        self.state_size = simulation.state_size

    def __getattr__(self, name: str) -> Any:
        """Returns what not every simulation has, such as ``render``."""
        return getattr(self._inside, name)

    def reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        return self._inside.reset(seed, options)

    def step(self, actions: dict[str, Any]) -> StepResult:
        return self._inside.step(actions)

    def state(self) -> NDArray[Any] | None:
        return self._inside.state()

    def close(self) -> None:
        self._inside.close()
