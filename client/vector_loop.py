"""Drives a simulation that steps many copies of itself at once: one message a server and step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from muxrl.client.adapters.simulation import SimulationError
from muxrl.client.adapters.vector_simulation import (
    Rows,
    VectorSimulation,
    VectorStep,
    ended_apart,
)
from muxrl.client.episode_metrics import EPISODE_LENGTH, VectorMetrics
from muxrl.client.episode_parameters import Parameters, draw
from muxrl.client.errors import EpisodeMisuse
from muxrl.client.multiplexer import MultiplexingClient
from muxrl.client.outbox import Outbox
from muxrl.client.play_loop import EpisodeResult, How, PlayLoop, SimulationFailed, result_of

if TYPE_CHECKING:  # in `typing` since Python 3.11
    from typing_extensions import Unpack

_MOST_IDLE = 10_000
"""Steps in a row in which no copy acts."""


class VectorLoop(PlayLoop):
    """Plays episodes of all copies of one simulation.

    Copies cannot be reset to a seed one by one: the first seed is of all, and the others are drawn
    for nothing but to count episodes. An episode that is lost begins again where its copy stands; a
    copy with a bad value is left out until its episode is over. Neither's returns are reported.
    When the loop is held, or has used up its env steps, it pauses between two steps; the step in
    which it uses them up is of all copies.

    Args:
        simulation: whose copies are stepped.
        client, mode, should_explore, seeds, on_lost, on_bad_value, metrics, parameters: see `How`.

    Raises:
        AssignmentError: an agent of the simulation belongs to no server.
    """

    def __init__(
        self,
        simulation: VectorSimulation,
        client: MultiplexingClient,
        **how: Unpack[How],
    ) -> None:
        client.check_agents(simulation.possible_agents)
        super().__init__(client, simulation.num_copies, **how)
        self._simulation = simulation
        if not client.wants_state:
            simulation.state_size = None  # nor is it read
        self._collector = VectorMetrics(self._metrics, simulation.num_copies)
        num_copies = simulation.num_copies
        self._is_partial = np.zeros(num_copies, bool)
        """Copies whose episode began in the middle of the simulation's."""
        self._is_out = np.zeros(num_copies, bool)
        """Copies with a bad value."""
        self._drawn: dict[int, tuple[Parameters, int | None]] = {}
        """Parameters and seeds of the episodes that begin next, by copy."""
        self._parameters_of: list[Parameters] = [{}] * num_copies
        if self.parameters:
            simulation.ask_options(self._draw)

    def _draw(self, copy: int) -> Parameters:
        seed = next(self._seeds, None)
        self._drawn[copy] = draw(self.parameters, seed), seed
        return self._drawn[copy][0]

    @property
    def _is_between_episodes(self) -> bool:
        return True  # never all at a time: it pauses between any two steps

    def _play(
        self, on_episode: Callable[[EpisodeResult], None], should_stop: Callable[[], bool]
    ) -> None:
        num_idle = 0
        seed = next(self._seeds, None)
        observations = self._guarded("reset", self._simulation.reset, seed)
        for copy in range(self._simulation.num_copies):
            self._begin(copy, is_drawn=copy == 0, seed=seed if copy == 0 else None)
        while True:
            self._ask(observations)
            self._rest_if_due(should_stop)
            if should_stop():
                return
            self._outbox = Outbox()
            num_acting = int(np.count_nonzero(self._table.is_open))
            num_idle = 0 if num_acting else num_idle + 1
            if num_idle > _MOST_IDLE:
                raise SimulationFailed(
                    f"all {self._simulation.num_copies} copies had a bad value, and for "
                    f"{num_idle} steps none of their episodes has ended"
                )
            with self._lock:
                self._num_claimed += num_acting
            step = self._guarded("step", self._simulation.step, self._table.actions_in_arrays)
            self._note(step, num_acting)
            for copy in np.flatnonzero(step.is_over).tolist():
                self._end(copy, step, on_episode)
            due = step.present.any(1) & ~self._table.is_open & ~self._is_out
            for copy in np.flatnonzero(due).tolist():
                self._begin(copy)
            observations = step.observations

    def _begin(self, copy: int, *, is_drawn: bool = False, seed: int | None = None) -> None:
        if copy in self._drawn:
            self._parameters_of[copy], seed = self._drawn.pop(copy)
        elif not is_drawn:
            seed = next(self._seeds, None)
        self._collector.clear(copy)  # of what came with a reset
        self._table.begin(
            self._outbox, copy, mode=self._mode, should_explore=self._should_explore, seed=seed
        )

    def _ask(self, observations: Mapping[str, Rows]) -> None:
        """Has each copy that has an episode get its actions, or be out."""
        table, agents = self._table, self._simulation.possible_agents
        state = self._state_of(self._simulation)
        copies = None
        while True:
            try:
                table.step_in_arrays(self._outbox, agents, observations, state, copies)
            except EpisodeMisuse as error:
                raise SimulationFailed(str(error)) from error
            asked = list(table.by_slot)
            lost = self._exchange(self._outbox)
            if not lost and not self._bad:
                return
            again = []
            for copy, episode in enumerate(asked):
                if episode is None or episode.episode_id not in lost | self._bad:
                    continue
                if episode.episode_id in self._bad:
                    self._is_out[copy] = True
                else:
                    again.append(copy)
                    self._is_partial[copy] |= bool(table.t[:, copy].max() > 1)
                self._collector.clear(copy)
            if not again:
                return
            self._outbox = Outbox()
            for copy in again:
                self._begin(copy, is_drawn=True)
            copies = np.array(again)

    def _note(self, step: VectorStep, num_acting: int) -> None:
        self.num_env_steps += num_acting
        try:
            self._check_together(step.present)
            if self._metrics:
                self._collector.add(step.infos, step.is_over)
            self._table.log_in_arrays(step.rewards)
        except (SimulationError, EpisodeMisuse) as error:
            raise SimulationFailed(str(error)) from error

    def _check_together(self, present: NDArray[np.bool_]) -> None:
        if not present.all():
            for copy in np.flatnonzero(present.any(1) & ~present.all(1)).tolist():
                gone = np.array(self._simulation.possible_agents)[~present[copy]]
                raise ended_apart(copy, gone.tolist())

    def _end(
        self, copy: int, step: VectorStep, on_episode: Callable[[EpisodeResult], None]
    ) -> None:
        is_partial, self._is_partial[copy], self._is_out[copy] = (
            self._is_partial[copy],
            False,
            False,
        )
        if not self._table.is_open[copy]:  # it was out
            self._collector.clear(copy)
            return
        num_steps = int(self._table.t[:, copy].max())
        metrics = self._collector.take(copy, num_steps)
        is_truncated = not step.terminated[copy].any()
        episode = self._table.end(
            self._outbox,
            copy,
            step.final_observations[copy],
            is_truncated=is_truncated,
            state=step.final_states.get(copy) if is_truncated else None,
            metrics={name: one for name, one in metrics.items() if name != EPISODE_LENGTH},
        )
        if not is_partial:
            self.num_episodes += 1
            on_episode(result_of(episode, num_steps, None, metrics, self._parameters_of[copy]))
