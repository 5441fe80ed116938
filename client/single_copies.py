"""Drives ordinary simulations side by side; each is reset and stepped separately, in dicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from muxrl.client.adapters.simulation import Simulation, SimulationError, StepResult
from muxrl.client.copies import Copies, Over, SimulationFailed
from muxrl.client.multiplexer import MultiplexingClient
from muxrl.client.outbox import Outbox


class SingleCopies(Copies):
    """Ordinary simulations as copies.

    Args:
        simulations: one for each slot.
        client, metrics: see `Copies`.
    """

    begin_on_request = True

    def __init__(
        self,
        simulations: Sequence[Simulation],
        client: MultiplexingClient,
        metrics: Mapping[str, str],
    ) -> None:
        agents = {agent: None for one in simulations for agent in one.possible_agents}
        super().__init__(len(simulations), agents, client, metrics)
        self._simulations = simulations
        self.num_steps = [0] * self.num
        self._acting: list[Mapping[str, Any]] = [{}] * self.num
        """By copy: the observations of the agents that act next."""
        self._asking: list[int] = []
        self._states: list[Any] = [None] * self.num

    def begin(self, copy: int, seed: int | None, parameters: Mapping[str, float]) -> None:
        reset, given = self._simulations[copy].reset, (parameters,) if parameters else ()
        self.num_steps[copy] = 0
        self.metrics.clear(copy)
        self._observe(copy, self._call("reset", reset, seed, *given)[0])

    def _observe(self, copy: int, observations: Mapping[str, Any]) -> None:
        self._acting[copy] = observations
        self._asking.append(copy)
        self._states[copy] = self._state_of(self._simulations[copy])

    def ask(self, outbox: Outbox) -> None:
        if not (asking := self._asking):
            return
        # Copies that have just begun come last. In order, adjacent episodes stay adjacent rows.
        asking.sort()
        seen = [self._acting[copy] for copy in asking]
        self.table.step(outbox, asking, seen, [self._states[copy] for copy in asking])
        self._asking = []

    def step(self, copies: Sequence[int]) -> Iterator[Over]:
        table = self.table
        for copy in copies:
            simulation, chosen = self._simulations[copy], table.actions[copy]
            actions = {agent_id: chosen[agent_id] for agent_id in self._acting[copy]}
            result = self._call("step", simulation.step, actions)
            num_steps = 1 + len(result.earlier_infos)
            self.num_steps[copy] += num_steps
            self.num_env_steps += num_steps
            if self._has_metrics:
                self._note_infos(copy, result)
            terminations, truncations = result.terminations, result.truncations
            table.log(copy, result.rewards, terminations, truncations, result.final_observations)
            if not result.is_over:
                self._observe(copy, result.observations)
                continue
            state = self._state_of(simulation) if table.wants_state_at_end(copy) else None
            yield Over(copy, bool(truncations) and not terminations, {}, state)

    def _note_infos(self, copy: int, result: StepResult) -> None:
        try:
            for infos in (*result.earlier_infos, result.infos):
                self.metrics.add(infos, copy)
        except SimulationError as error:
            raise SimulationFailed(str(error)) from error
