"""Sides that swap: in an episode each side's agents may act in place of another one's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from muxrl.client.adapters.around import Around
from muxrl.client.adapters.side_places import Sides
from muxrl.client.adapters.simulation import Simulation, SimulationError, StepResult
from muxrl.client.adapters.vector_sides import SwappedVector

T = TypeVar("T")


class Swapped(Around):
    """A simulation whose sides change places: an agent acts in place of one of another side.

    The global state stays as the environment has it.

    Args:
        simulation: what is played.
        parameter: of the episode: by how many sides each one moves on; it has none: 0.
        sides: who swaps.
    """

    def __init__(self, simulation: Simulation, parameter: str, sides: Sides) -> None:
        super().__init__(simulation)
        self._parameter, self._sides = parameter, sides

    def reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        options = dict(options or {})
        self._place_of = self._sides.moved(int(options.pop(self._parameter, 0)))
        self._agent_in = {place: agent for agent, place in self._place_of.items()}
        observations, infos = self._inside.reset(seed, options or None)
        return self._named(observations), self._named(infos)

    def step(self, actions: dict[str, Any]) -> StepResult:
        placed = {self._place_of.get(agent, agent): action for agent, action in actions.items()}
        result: StepResult = self._inside.step(placed)
        return result._replace(
            observations=self._named(result.observations),
            rewards=self._named(result.rewards),
            terminations=self._named(result.terminations),
            truncations=self._named(result.truncations),
            final_observations=self._named(result.final_observations),
            infos=self._named(result.infos),
            earlier_infos=tuple(map(self._named, result.earlier_infos)),
        )

    def _named(self, by_place: dict[str, T]) -> dict[str, T]:
        return {self._agent_in.get(place, place): value for place, value in by_place.items()}


def with_sides(simulation: Any, parameters: Mapping[str, Any], *, is_vector: bool = False) -> Any:
    """Returns a simulation with the sides that episodes' parameters name.

    Args:
        simulation: what is played.
        parameters: see `muxrl.client.episode_parameters.draw`.
        is_vector: whether it is a `VectorSimulation`, rather than an ordinary one.

    Raises:
        SimulationError: they cannot swap.
    """
    sides = {name: given["sides"] for name, given in parameters.items() if _has_sides(given)}
    has_more = len(sides) < len(parameters)
    for name, given in sides.items():
        try:
            found = Sides(simulation, given)
        except SimulationError:
            simulation.close()
            raise
        if is_vector:
            simulation = SwappedVector(simulation, name, found, has_more=has_more)
        else:
            simulation = Swapped(simulation, name, found)
    return simulation


def _has_sides(given: Any) -> bool:
    return isinstance(given, Mapping) and "sides" in given
