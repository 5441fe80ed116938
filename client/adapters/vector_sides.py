"""Sides that swap in the copies of a simulation that steps all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.around import Around
from muxrl.client.adapters.side_places import Sides
from muxrl.client.adapters.vector_simulation import (
    Rows,
    VectorSimulation,
    VectorStep,
    copied,
    row,
)
from muxrl.protocol.rows import each_array, put


class SwappedVector(Around):
    """The copies of a `VectorSimulation`, whose sides change places in each as its episode says.

    Args:
        simulation, parameter, sides: see `Swapped`.
        has_more: whether episodes have other parameters, too, for the simulation inside.
    """

    def __init__(
        self, simulation: VectorSimulation, parameter: str, sides: Sides, *, has_more: bool
    ) -> None:
        super().__init__(simulation)
        self._parameter, self._sides, self._has_more = parameter, sides, has_more
        agents = {agent: i for i, agent in enumerate(self.possible_agents)}
        self._agents = agents
        self._place_of = np.tile(np.arange(len(agents)), (simulation.num_copies, 1))
        """``[N, A]``: in whose place an agent acts, in the order of `possible_agents`."""
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
        self._place_of[:] = np.arange(len(self._agents))
        return self._observe(self._inside.reset(seed))

    def begin(self, copy: int, seed: int | None, options: Mapping[str, float]) -> None:
        """See `VectorSimulation.begin`."""
        self._inside.begin(copy, seed, self._without(options))
        moved = self._sides.moved(int(options.get(self._parameter, 0)))
        places = [self._agents[moved.get(agent, agent)] for agent in self._agents]
        if places != self._place_of[copy].tolist():
            self._place_of[copy] = places
            for agent in moved:
                put(self._seen[agent], copy, row(self._given[moved[agent]], copy))

    def step(self, actions: Mapping[str, Rows]) -> VectorStep:
        acts_in = np.argsort(self._place_of, axis=1)
        step: VectorStep = self._inside.step(self._moved(actions, acts_in))
        names = {c: self._names(c) for c in step.final_observations}
        return step._replace(
            observations=self._observe(step.observations),
            rewards=self._moved(step.rewards, self._place_of),
            present=self._columns(step.present),
            terminated=self._columns(step.terminated),
            truncated=self._columns(step.truncated),
            final_observations={
                copy: {names[copy][place]: last for place, last in by_place.items()}
                for copy, by_place in step.final_observations.items()
            },
            infos=self._infos(step.infos),
        )

    def _names(self, copy: int) -> dict[str, str]:
        """Returns who acts in each place of a copy."""
        agents = self.possible_agents
        places = self._place_of[copy].tolist()
        return {agents[place]: agent for agent, place in zip(agents, places, strict=True)}

    def _observe(self, given: Mapping[str, Rows]) -> dict[str, Rows]:
        self._given, self._seen = given, self._moved(copied(given), self._place_of)
        return dict(self._seen)

    def _columns(self, flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.take_along_axis(flags, self._place_of, axis=1)

    def _moved(self, by_place: Mapping[str, Rows], places: NDArray[np.int64]) -> dict[str, Rows]:
        """Returns rows by agent, of those by place; `places` has the place of each agent."""
        moved = dict(by_place)
        for agent, i in self._agents.items():
            for j in np.unique(places[:, i]).tolist():
                place = self.possible_agents[j]
                if place != agent and agent in moved and place in by_place:
                    if moved[agent] is by_place[agent]:
                        moved[agent] = copied(moved[agent])
                    there = np.flatnonzero(places[:, i] == j)
                    put(moved[agent], there, each_array(itemgetter(there), by_place[place]))
        return moved

    def _infos(self, infos: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        """Returns infos by agent; where several places share an agent's copies, row by row."""
        moved: dict[str, Mapping[str, Any]] = {}
        for agent, info in infos.items():
            if agent not in self._agents:  # of no one agent
                moved[agent] = info
        for agent, i in self._agents.items():
            found: dict[str, Any] = {}
            for j in np.unique(self._place_of[:, i]).tolist():
                _merge(found, infos.get(self.possible_agents[j], {}), self._place_of[:, i] == j)
            if found:
                moved[agent] = found
        return moved


def _merge(into: dict[str, Any], info: Mapping[str, Any], there: NDArray[np.bool_]) -> None:
    """Takes the rows of some copies over into an info in arrays."""
    for name, values in info.items():
        if isinstance(values, Mapping):
            _merge(into.setdefault(name, {}), values, there)
        elif isinstance(values, np.ndarray) and len(values) == len(there) and name[:1] != "_":
            has = there & np.asarray(info.get(f"_{name}", True), bool)
            if name not in into:
                into[name] = np.zeros_like(values)
                into[f"_{name}"] = np.zeros(len(there), bool)
            into[name] = np.where(has.reshape(-1, *[1] * (values.ndim - 1)), values, into[name])
            into[f"_{name}"] = into[f"_{name}"] | has
