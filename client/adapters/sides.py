"""Sides that swap: in an episode each side's agents may sit in those of another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from muxrl.client.adapters.around import Around
from muxrl.client.adapters.simulation import Simulation, SimulationError, StepResult
from muxrl.protocol.patterns import match
from muxrl.protocol.suggestions import listed

T = TypeVar("T")


class Swapped(Around):
    """A simulation whose sides change places: an agent has the seat of one of another side.

    The global state stays as the environment has it.

    Args:
        simulation: what is played.
        parameter: of the episode: by how many sides each one moves on; it has none: 0.
        sides: agents of each side, or patterns; those at the same place of two sides swap.

    Raises:
        SimulationError: sides overlap, name nobody, or differ in number or in their spaces.
    """

    def __init__(
        self, simulation: Simulation, parameter: str, sides: Sequence[str | Sequence[str]]
    ) -> None:
        super().__init__(simulation)
        self._parameter = parameter
        names = simulation.possible_agents
        found = [match([side] if isinstance(side, str) else side, names) for side in sides]
        self._sides = [agents for agents, _ in found]
        if idle := [pattern for _, without in found for pattern in without]:
            raise SimulationError(f"side {idle[0]!r} matches no agent ({listed(names)})")
        members = [agent for side in self._sides for agent in side]
        if len(set(members)) < len(members):
            raise SimulationError(f"an agent is on one side, got {self._sides}")
        spaces = [
            [(simulation.observation_spaces[a], simulation.action_spaces[a]) for a in side]
            for side in self._sides
        ]
        for side, theirs in zip(self._sides, spaces, strict=True):
            if theirs != spaces[0]:
                raise SimulationError(
                    f"sides {listed(self._sides[0])} and {listed(side)} cannot swap: their agents "
                    "differ in number or in their spaces"
                )

    def reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        options = dict(options or {})
        by = int(options.pop(self._parameter, 0)) % len(self._sides)
        seats = [*self._sides[by:], *self._sides[:by]]
        self._seat_of = {
            agent: seat
            for side, those in zip(self._sides, seats, strict=True)
            for agent, seat in zip(side, those, strict=True)
        }
        self._agent_in = {seat: agent for agent, seat in self._seat_of.items()}
        observations, infos = super().reset(seed, options or None)
        return self._named(observations), self._named(infos)

    def step(self, actions: dict[str, Any]) -> StepResult:
        seated = {self._seat_of.get(agent, agent): action for agent, action in actions.items()}
        result = super().step(seated)
        return result._replace(
            observations=self._named(result.observations),
            rewards=self._named(result.rewards),
            terminations=self._named(result.terminations),
            truncations=self._named(result.truncations),
            final_observations=self._named(result.final_observations),
            infos=self._named(result.infos),
            earlier_infos=tuple(map(self._named, result.earlier_infos)),
        )

    def _named(self, by_seat: dict[str, T]) -> dict[str, T]:
        return {self._agent_in.get(seat, seat): value for seat, value in by_seat.items()}


def with_sides(simulation: Simulation, parameters: Mapping[str, Any]) -> Simulation:
    """Returns the simulation, with the sides of `muxrl.client.episode_parameters.draw`.

    Raises:
        SimulationError: they cannot swap.
    """
    for name, given in parameters.items():
        if isinstance(given, Mapping) and "sides" in given:
            try:
                simulation = Swapped(simulation, name, given["sides"])
            except SimulationError:
                simulation.close()
                raise
    return simulation
