"""Which agents make a side, and in whose place each acts once the sides have moved on."""

from __future__ import annotations

from collections.abc import Sequence

from muxrl.client.adapters.simulation import Simulation, SimulationError
from muxrl.client.adapters.vector_simulation import VectorSimulation
from muxrl.protocol.patterns import match
from muxrl.protocol.suggestions import listed


class Sides:
    """The sides of a simulation, and who plays whom once they have moved on.

    Args:
        simulation: what is played, ordinary or in arrays.
        sides: agents of each side, or patterns; those at the same place of two sides swap.

    Raises:
        SimulationError: sides overlap, name nobody, or differ in number or in their spaces.
    """

    def __init__(
        self, simulation: Simulation | VectorSimulation, sides: Sequence[str | Sequence[str]]
    ) -> None:
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

    def moved(self, by: int) -> dict[str, str]:
        """Returns in whose place each agent of a side acts, if all sides move on by so many."""
        by %= len(self._sides)
        places = [*self._sides[by:], *self._sides[:by]]
        return {
            agent: place
            for side, those in zip(self._sides, places, strict=True)
            for agent, place in zip(side, those, strict=True)
        }
