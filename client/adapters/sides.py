"""Swaps the sides of a game: in an episode the agents of a side may act in another side's place.

The first agents of all sides swap with each other, and so do the second ones, and so on. A
parameter of the episode says by how many sides each one moves on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.around import Around
from muxrl.client.adapters.simulation import Simulation, SimulationError, StepResult
from muxrl.client.adapters.vector_simulation import Rows, VectorSimulation, VectorStep, copied, row
from muxrl.protocol.patterns import match
from muxrl.protocol.rows import put
from muxrl.protocol.suggestions import listed

T = TypeVar("T")
Swap = tuple[str, ...]
"""Agents that act in place of each other, in the order of their sides."""


def with_sides(simulation: Any, parameters: Mapping[str, Any], *, is_vector: bool = False) -> Any:
    """Returns a simulation whose sides swap, if parameters name sides.

    Args:
        simulation: the simulation to play.
        parameters: see `muxrl.client.episode_parameters.draw`.
        is_vector: whether it is a `VectorSimulation` rather than an ordinary one.

    Raises:
        SimulationError: the sides cannot swap.
    """
    sides = {name: given["sides"] for name, given in parameters.items() if _has_sides(given)}
    has_more = len(sides) < len(parameters)
    for name, given in sides.items():
        try:
            swaps = _find_swaps(simulation, given)
        except SimulationError:
            simulation.close()
            raise
        if is_vector:
            simulation = SwappedVector(simulation, name, swaps, has_more=has_more)
        else:
            simulation = Swapped(simulation, name, swaps)
    return simulation


def _has_sides(given: Any) -> bool:
    return isinstance(given, Mapping) and "sides" in given


def _find_swaps(
    simulation: Simulation | VectorSimulation, sides: Sequence[str | Sequence[str]]
) -> list[Swap]:
    """Returns the agents that swap with each other; sides are given as agents or patterns.

    Raises:
        SimulationError: sides overlap, match no agent, or differ in number or in their spaces.
    """
    names = simulation.possible_agents
    found = [match([side] if isinstance(side, str) else side, names) for side in sides]
    teams = [agents for agents, _ in found]
    if idle := [pattern for _, without in found for pattern in without]:
        raise SimulationError(f"side {idle[0]!r} matches no agent ({listed(names)})")
    members = [agent for team in teams for agent in team]
    if len(set(members)) < len(members):
        raise SimulationError(f"an agent can be on one side only, but the sides are {teams}")
    spaces = [
        [(simulation.observation_spaces[a], simulation.action_spaces[a]) for a in team]
        for team in teams
    ]
    for team, theirs in zip(teams, spaces, strict=True):
        if theirs != spaces[0]:
            raise SimulationError(
                f"sides {listed(teams[0])} and {listed(team)} cannot swap: their agents "
                "differ in number or in their spaces"
            )
    return list(zip(*teams, strict=True))


def _agents_in(swaps: Iterable[Swap], by: int) -> dict[str, str]:
    """Returns by place the agent that acts there, if all sides move on by `by` sides."""
    return {swap[(i + by) % len(swap)]: agent for swap in swaps for i, agent in enumerate(swap)}


class Swapped(Around):
    """A simulation whose sides swap places: an agent acts in the place of one of another side.

    The global state stays as the environment gives it.

    Args:
        simulation: the simulation to play.
        parameter: name of the parameter that says by how many sides each one moves on; 0 if an
            episode does not have it.
        swaps: agents that swap with each other.
    """

    def __init__(self, simulation: Simulation, parameter: str, swaps: Sequence[Swap]) -> None:
        super().__init__(simulation)
        self._parameter, self._swaps = parameter, swaps

    def reset(
        self, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        options = dict(options or {})
        self._agent_in = _agents_in(self._swaps, int(options.pop(self._parameter, 0)))
        self._place_of = {agent: place for place, agent in self._agent_in.items()}
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


class SwappedVector(Around):
    """A `VectorSimulation` whose sides swap places, in each copy as its episode's parameter says.

    Args:
        simulation, parameter, swaps: see `Swapped`.
        has_more: whether episodes have more parameters, for the simulation inside.
    """

    def __init__(
        self, simulation: VectorSimulation, parameter: str, swaps: list[Swap], *, has_more: bool
    ) -> None:
        super().__init__(simulation)
        self._parameter, self._swaps, self._has_more = parameter, swaps, has_more
        self._by = np.zeros(simulation.num_copies, np.int64)
        """``[N]``: by how many sides each one has moved on in the copy."""
        self._given: Mapping[str, Rows] = {}
        self._seen: dict[str, Rows] = {}

    def ask_options(self, options_of: Callable[[int], Mapping[str, float]]) -> None:
        """See `VectorSimulation.ask_options`."""
        if self._has_more:
            self._inside.ask_options(lambda copy: self._without(options_of(copy)))

    def _without(self, options: Mapping[str, float]) -> dict[str, float]:
        return {name: one for name, one in options.items() if name != self._parameter}

    @property
    def present(self) -> NDArray[np.bool_]:
        """See `VectorSimulation.present`."""
        return self._columns(self._inside.present)

    def reset(self, seed: int | None = None) -> dict[str, Rows]:
        self._by[:] = 0
        return self._observe(self._inside.reset(seed))

    def begin(self, copy: int, seed: int | None, options: Mapping[str, float]) -> None:
        """See `VectorSimulation.begin`."""
        self._inside.begin(copy, seed, self._without(options))
        by = int(options.get(self._parameter, 0))
        if by != self._by[copy]:
            self._by[copy] = by
            for place, agent in _agents_in(self._swaps, by).items():
                put(self._seen[agent], copy, row(self._given[place], copy))

    def step(self, actions: Mapping[str, Rows]) -> VectorStep:
        step: VectorStep = self._inside.step(self._moved(actions, -self._by))
        finals: dict[int, dict[str, Any]] = {}
        for copy, by_place in step.final_observations.items():
            agent_in = _agents_in(self._swaps, int(self._by[copy]))
            finals[copy] = {agent_in.get(place, place): last for place, last in by_place.items()}
        return step._replace(
            observations=self._observe(step.observations),
            rewards=self._moved(step.rewards, self._by),
            present=self._columns(step.present),
            terminated=self._columns(step.terminated),
            truncated=self._columns(step.truncated),
            final_observations=finals,
            infos=self._infos(step.infos),
        )

    def _observe(self, given: Mapping[str, Rows]) -> dict[str, Rows]:
        self._given, self._seen = given, self._moved(copied(given), self._by)
        return dict(self._seen)

    def _columns(self, flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        by_place = dict(zip(self.possible_agents, flags.T, strict=True))
        return np.stack([*self._moved(by_place, self._by).values()], axis=1)

    def _moved(self, given: Mapping[str, Rows], by: NDArray[np.int64]) -> dict[str, Rows]:
        """Returns by agent the rows of the agent that is `by` sides further, in each copy."""
        moved = dict(given)
        if by.any():
            nothing = np.zeros(len(by))  # for a reward that is left out
            for swap in self._swaps:
                rows = [given.get(agent, nothing) for agent in swap]
                for i, agent in enumerate(swap):
                    moved[agent] = _picked(rows, (i + by) % len(swap))
        return moved

    def _infos(self, infos: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        """Returns infos by agent: in each copy, the infos of the place in which the agent acts."""
        moved = dict(infos)
        for swap in self._swaps:
            for i, agent in enumerate(swap):
                found: dict[str, Any] = {}
                for j, place in enumerate(swap):
                    _merge(found, infos.get(place, {}), (i + self._by) % len(swap) == j)
                moved[agent] = found
        return moved


def _picked(rows: Sequence[Rows], which: NDArray[np.int64]) -> Rows:
    """Returns rows in which each copy's row is taken from one of several: `which` has its index."""
    first = rows[0]
    if isinstance(first, Mapping):
        return {key: _picked([one[key] for one in rows], which) for key in first}
    if isinstance(first, tuple):
        return tuple(_picked(parts, which) for parts in zip(*rows, strict=True))
    return np.stack(rows)[which, np.arange(len(which))]


def _merge(into: dict[str, Any], info: Mapping[str, Any], there: NDArray[np.bool_]) -> None:
    """Copies the rows of some copies into an info in arrays."""
    for name, values in info.items():
        if isinstance(values, Mapping):
            _merge(into.setdefault(name, {}), values, there)
        elif isinstance(values, np.ndarray) and values.shape[:1] == there.shape and name[:1] != "_":
            has = there & np.asarray(info.get(f"_{name}", True), bool)
            if name not in into:
                into[name] = np.zeros_like(values)
                into[f"_{name}"] = np.zeros(len(there), bool)
            into[name] = np.where(has.reshape(-1, *[1] * (values.ndim - 1)), values, into[name])
            into[f"_{name}"] = into[f"_{name}"] | has
