"""Several ordinary simulations, stepped side by side, as one with a copy for each."""

from __future__ import annotations

import contextlib
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
        self._acting: list[Mapping[str, Any]] = [{}] * self.num_copies
        """What the agents of each copy observe that are to act."""
        self.present = np.zeros((self.num_copies, len(self.possible_agents)), bool)
        """See `VectorSimulation.present`; another array where it changes."""
        self._observations: dict[str, Rows] = {
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
        agents, num_copies = self.possible_agents, self.num_copies
        rewards = dict(zip(agents, np.zeros((len(agents), num_copies)), strict=True))
        is_over = np.zeros(num_copies, bool)
        ends: dict[int, tuple[Collection[str], Collection[str]]] = {}
        seen: dict[int, Mapping[str, Any]] = {}
        finals: dict[int, dict[str, Any]] = {}
        states: dict[int, NDArray[np.float32]] = {}
        infos: dict[int, tuple[dict[str, dict[str, Any]], ...]] = {}
        given = {agent: _values(rows, num_copies) for agent, rows in actions.items()}
        for copy in range(num_copies) if copies is None else copies:
            if not self._acting[copy]:
                if copies is None:
                    seen[copy] = self._reset(copy, None, self._options_of(copy))
                continue
            simulation = self._simulations[copy]
            result = simulation.step({agent: given[agent][copy] for agent in self._acting[copy]})
            seen[copy], infos[copy] = result.observations, (*result.earlier_infos, result.infos)
            for agent, reward in result.rewards.items():
                rewards[agent][copy] = reward
            if result.terminations or result.truncations:
                ends[copy] = result.terminations, result.truncations
            if result.final_observations:
                finals[copy] = result.final_observations
            if result.is_over:
                is_over[copy] = True
                if self.state_size is not None:
                    states[copy] = np.asarray(simulation.state())
        terminated, truncated = (np.zeros(self.present.shape, bool) for _ in range(2))
        for copy, who in ends.items():
            for flags, those in zip((terminated, truncated), who, strict=True):
                flags[copy] = [agent in those for agent in agents]
        observations = self._observe(seen)
        return VectorStep(
            observations,
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
        """Notes what agents of some copies observe; returns the observations of all.

        Raises:
            SimulationError: a value does not fit its space.
        """
        before = list(self._acting)
        for copy, by_agent in seen.items():
            self._acting[copy] = by_agent
        if any(before[copy].keys() != by_agent.keys() for copy, by_agent in seen.items()):
            agents = self.possible_agents
            self.present = np.array([[a in by_agent for a in agents] for by_agent in self._acting])
        whole = list(range(self.num_copies))
        for agent, space in self.observation_spaces.items():
            copies = [copy for copy, by_agent in seen.items() if agent in by_agent]
            if not copies:
                continue
            values = [seen[copy][agent] for copy in copies]
            try:
                new = stack(space, values, (len(values),))
            except NotInRows:
                values = [self._plain(agent, c, v) for c, v in zip(copies, values, strict=True)]
                new = stack(space, values, (len(values),))
            if copies != whole:
                some, new = new, each_array(np.copy, self._observations[agent])
                put(new, copies, some)
            self._observations[agent] = new
        return dict(self._observations)

    def _plain(self, agent: str, copy: int, value: Any) -> Any:
        with contextlib.suppress(NotInRows):
            stack(self.observation_spaces[agent], [value], (1,))
            return value
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


def _values(rows: Rows, num_copies: int) -> Any:
    """Returns the value of each copy."""
    if isinstance(rows, np.ndarray):
        return rows.tolist() if rows.ndim == 1 else rows
    return [row(rows, copy) for copy in range(num_copies)]
