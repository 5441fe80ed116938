"""Drives a simulation that steps all of its copies at once, in arrays."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.simulation import SimulationError
from muxrl.client.adapters.vector_simulation import Rows, VectorSimulation, VectorStep
from muxrl.client.copies import Copies, Over, SimulationFailed
from muxrl.client.errors import EpisodeMisuse
from muxrl.client.multiplexer import MultiplexingClient
from muxrl.client.outbox import Outbox

_MOST_IDLE = 10_000
"""Most steps in a row in which no copy acts."""


class VectorCopies(Copies):
    """The copies of a `VectorSimulation`.

    Args:
        simulation: the simulation that has the copies.
        client, metrics: see `Copies`.
    """

    begin_on_request = False

    def __init__(
        self, simulation: VectorSimulation, client: MultiplexingClient, metrics: Mapping[str, str]
    ) -> None:
        super().__init__(simulation.num_copies, simulation.possible_agents, client, metrics)
        if not client.wants_state:
            simulation.leave_out_state()
        self._simulation = simulation
        self.num_steps = np.zeros(self.num, np.int64)
        self._is_first = np.zeros(self.num, bool)
        """By copy: whether it is at the first step of an episode, or comes to one next."""
        self._observations: Mapping[str, Rows] = {}
        self._present: NDArray[np.bool_] = simulation.present
        self._again: list[int] | None = None
        """The only copies to ask next, as their episodes have begun again; None: all copies."""
        self._num_idle = 0

    def ask_options(self, options_of: Callable[[int], Mapping[str, float]]) -> None:
        """See `VectorSimulation.ask_options`."""
        self._simulation.ask_options(options_of)

    def reset(self, seed: int | None) -> None:
        self._observations = self._call("reset", self._simulation.reset, seed)
        self._present, self._is_first[:] = self._simulation.present, True

    def may_begin(self, copy: int) -> bool:
        return bool(self._is_first[copy] and self._present[copy].any())

    def begin(self, copy: int, seed: int | None, parameters: Mapping[str, float]) -> None:
        if self._is_first[copy]:
            self._call("begin", self._simulation.begin, copy, seed, parameters)
            self._is_first[copy] = False
        else:
            self._again = [*(self._again or ()), copy]
        self.num_steps[copy] = 0
        self.metrics.clear(copy)  # drops infos that came with a reset

    def ask(self, outbox: Outbox) -> None:
        state, agents = self._state_of(self._simulation), self._simulation.possible_agents
        try:
            self.table.step_in_arrays(
                outbox, agents, self._observations, self._present, state, self._again
            )
        except EpisodeMisuse as error:
            raise SimulationFailed(str(error)) from error
        self._again = None

    def step(self, copies: Sequence[int]) -> Iterator[Over]:
        self._num_idle = 0 if copies else self._num_idle + 1
        if self._num_idle > _MOST_IDLE:
            raise SimulationFailed(
                f"all {self.num} copies had a bad value, and for {self._num_idle} steps none of "
                "their episodes has ended"
            )
        table = self.table
        step = self._call("step", self._simulation.step, table.actions_in_arrays)
        self.num_steps += table.is_open
        self.num_env_steps += len(copies)
        try:
            if self._has_metrics:
                self.metrics.add_arrays(step.infos, step.is_over)
            table.log_in_arrays(step.rewards)
        except (SimulationError, EpisodeMisuse) as error:
            raise SimulationFailed(str(error)) from error
        self._observations, self._present = step.observations, step.present
        overs = self._log_ends(step)
        self._is_first |= step.is_over
        yield from overs

    def _log_ends(self, step: VectorStep) -> list[Over]:
        """Logs the ends of single agents, and returns the ends of episodes.

        If all agents of an episode end in its last step in the same way, none of them is logged:
        the end of the episode says it for all.
        """
        table, agents, overs = self.table, self._simulation.possible_agents, list[Over]()
        flags = step.terminated, step.truncated
        if not any(map(np.count_nonzero, (*flags, step.is_over))):
            return overs
        have_ended, are_cut = (np.asarray(one.all(1)) for one in flags)
        have_all = step.is_over & (have_ended | are_cut)
        done = flags[0].any(1) | flags[1].any(1) | step.is_over
        for copy in np.flatnonzero(done & table.is_open).tolist():
            finals, state = step.final_observations.get(copy, {}), step.final_states.get(copy)
            if have_all[copy]:
                is_cut = bool(are_cut[copy])
                overs.append(Over(copy, is_cut, finals, state if is_cut else None))
                continue
            terminated, truncated = (
                dict.fromkeys(itertools.compress(agents, one[copy].tolist()), True) for one in flags
            )
            table.log(copy, {}, terminated, truncated, finals)
            if step.is_over[copy]:
                state = state if table.wants_state_at_end(copy) else None
                overs.append(Over(copy, bool(truncated) and not terminated, {}, state))
        return overs
