"""Several ordinary simulations, stepped side by side, as one with a copy for each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.simulation import Simulation, SimulationError
from muxrl.client.adapters.vector_simulation import Rows, VectorStep, row
from muxrl.protocol.rows import NotInRows, each_array, empty, put, stack
from muxrl.protocol.values import Mismatch, conform


class Stack:
    """Ordinary simulations as a `VectorSimulation`.

    A copy whose episode is over begins the next one in the step that follows, or when `begin` is
    called: of its own choice, or with a seed and parameters. Agents may come late, end one by one,
    and come back.

    Args:
        simulations: with the same agents and spaces.

    Raises:
        SimulationError: they differ.
    """

    def __init__(self, simulations: Sequence[Simulation]) -> None:
        first = simulations[0]
        for other in simulations:
            if (other.observation_spaces, other.action_spaces, other.possible_agents) != (
                first.observation_spaces, first.action_spaces, first.possible_agents,
            ):  # fmt: skip
                raise SimulationError("simulations of one stack differ in their agents or spaces")
        self._simulations = list(simulations)
        self.num_copies = len(simulations)
        self.possible_agents = first.possible_agents
        self.observation_spaces, self.action_spaces = first.observation_spaces, first.action_spaces
        self.state_size = first.state_size
        self._options_of: Callable[[int], Mapping[str, float]] = lambda copy: {}
        self._places = {agent: place for place, agent in enumerate(self.possible_agents)}
        self.present = np.zeros((self.num_copies, len(self._places)), bool)
        """See `VectorSimulation.present`; a new array after each step."""
        self._observations = {
            agent: each_array(np.zeros_like, empty(space, (self.num_copies,)))
            for agent, space in self.observation_spaces.items()
        }

    def ask_options(self, options_of: Callable[[int], Mapping[str, float]]) -> None:
        """See `VectorSimulation.ask_options`."""
        self._options_of = options_of

    def reset(self, seed: int | None = None) -> dict[str, Rows]:
        """Begins an episode in every copy; that of copy ``i`` has the seed ``seed + i``."""
        seen = {
            copy: self._reset(copy, None if seed is None else seed + copy, self._options_of(copy))
            for copy in range(self.num_copies)
        }
        return self._observe(seen)

    def begin(
        self, copy: int, seed: int | None = None, options: Mapping[str, float] | None = None
    ) -> dict[str, Rows]:
        """Begins an episode in one copy, whose own may still be open; returns what all observe."""
        return self._observe({copy: self._reset(copy, seed, options)})

    def _reset(
        self, copy: int, seed: int | None, options: Mapping[str, float] | None
    ) -> dict[str, Any]:
        reset = self._simulations[copy].reset
        return (reset(seed, options) if options else reset(seed))[0]

    def step(
        self, actions: Mapping[str, Rows], copies: Collection[int] | None = None
    ) -> VectorStep:
        """Steps copies with the actions of the agents that are there.

        Args:
            actions: by agent, a row for each copy.
            copies: which; the others stay as they are. None: all, and those that are over begin.
        """
        shape = self.present.shape
        rewards = {agent: np.zeros(self.num_copies) for agent in self.possible_agents}
        terminated, truncated = np.zeros(shape, bool), np.zeros(shape, bool)
        is_over = np.zeros(self.num_copies, bool)
        seen: dict[int, dict[str, Any]] = {}
        finals: dict[int, dict[str, Any]] = {}
        states: dict[int, NDArray[np.float32]] = {}
        infos: dict[int, tuple[dict[str, dict[str, Any]], ...]] = {}
        for copy in range(self.num_copies) if copies is None else copies:
            acting = [
                a for a, is_one in zip(self._places, self.present[copy], strict=True) if is_one
            ]
            if not acting:
                if copies is None:
                    seen[copy] = self._reset(copy, None, self._options_of(copy))
                continue
            given = {agent: row(actions[agent], copy) for agent in acting}
            result = self._simulations[copy].step(given)
            seen[copy], is_over[copy] = result.observations, result.is_over
            infos[copy] = (*result.earlier_infos, result.infos)
            for agent, reward in result.rewards.items():
                rewards[agent][copy] = reward
            terminated[copy, [self._places[a] for a in result.terminations]] = True
            truncated[copy, [self._places[a] for a in result.truncations]] = True
            if result.final_observations:
                finals[copy] = result.final_observations
            if result.is_over and self.state_size is not None:
                states[copy] = np.asarray(self._simulations[copy].state())
        return VectorStep(
            self._observe(seen),
            rewards,
            self.present,
            terminated,
            truncated,
            is_over,
            finals,
            {},
            states,
            infos,
        )

    def _observe(self, seen: Mapping[int, Mapping[str, Any]]) -> dict[str, Rows]:
        """Writes down what agents of some copies observe; returns the observations of all.

        Raises:
            SimulationError: a value does not fit its space.
        """
        self.present = self.present.copy()
        self._observations = each_array(np.copy, self._observations)
        for copy, by_agent in seen.items():
            self.present[copy] = [agent in by_agent for agent in self._places]
        for agent, rows in self._observations.items():
            values = {copy: by_agent[agent] for copy, by_agent in seen.items() if agent in by_agent}
            if not values:
                continue
            try:
                new = stack(self.observation_spaces[agent], list(values.values()), (len(values),))
            except NotInRows:
                for copy, value in values.items():
                    put(rows, copy, self._plain(agent, copy, value))
            else:
                put(rows, list(values), new)
        return dict(self._observations)

    def _plain(self, agent: str, copy: int, value: Any) -> Any:
        try:
            return conform(self.observation_spaces[agent], value)
        except Mismatch as mismatch:
            raise SimulationError(
                f"agent {agent!r} observes in copy {copy} what is not in its space: {mismatch}"
            ) from None

    def state(self) -> NDArray[np.float32] | None:
        """See `VectorSimulation.state`; zeros of a copy without an episode."""
        if self.state_size is None:
            return None
        states = np.zeros((self.num_copies, self.state_size), np.float32)
        for copy in np.flatnonzero(self.present.any(1)).tolist():
            states[copy] = self._simulations[copy].state()
        return states

    def close(self) -> None:
        """See `VectorSimulation.close`."""
        for simulation in self._simulations:
            simulation.close()
