"""Drives one simulation, or many in lockstep, with one message a server for all of them.

The end of an episode, the start of the next and its first step share a message, so that an
episode of `n` steps costs `n` round trips; `k` simulations cost no more than one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from muxrl.client.adapters.simulation import Simulation, SimulationError, StepResult
from muxrl.client.episode import Episode
from muxrl.client.episode_metrics import EPISODE_LENGTH, MetricCollector
from muxrl.client.episode_parameters import Parameters, draw
from muxrl.client.multiplexer import MultiplexingClient
from muxrl.client.outbox import Outbox
from muxrl.client.play_loop import EpisodeResult, How, PlayLoop, SimulationFailed, result_of

if TYPE_CHECKING:  # in `typing` since Python 3.11
    from typing_extensions import Unpack

__all__ = ["EnvLoop", "EpisodeResult", "SimulationFailed"]


@dataclass(eq=False)
class _Slot:
    """One simulation and its open episode, which has that slot of the table."""

    number: int
    simulation: Simulation
    metrics: MetricCollector
    episode: Episode | None = None
    is_due: bool = False
    """Whether its next episode begins once the loop is not held any more."""
    observations: dict[str, Any] = field(default_factory=dict)
    num_steps: int = 0
    seed: int | None = None
    parameters: Parameters = field(default_factory=dict)


class EnvLoop(PlayLoop):
    """Plays episodes of ordinary simulations.

    Args:
        simulations: played in lockstep.
        client, mode, should_explore, seeds, on_lost, on_bad_value, metrics, parameters: see
            `How`; what is lost begins again with the same seed.

    Raises:
        AssignmentError: an agent of a simulation belongs to no server.
    """

    def __init__(
        self,
        simulations: Sequence[Simulation],
        client: MultiplexingClient,
        **how: Unpack[How],
    ) -> None:
        for simulation in simulations:
            client.check_agents(simulation.possible_agents)
        super().__init__(client, len(simulations), **how)
        self._slots = [
            _Slot(number, one, MetricCollector(self._metrics))
            for number, one in enumerate(simulations)
        ]
        self._asking: list[int] = []
        """Slots in which agents observe in the turn that is being played."""
        self._seen: list[dict[str, Any]] = []
        self._states: list[Any] = []

    @property
    def _is_between_episodes(self) -> bool:
        return all(slot.episode is None for slot in self._slots)

    def _play(
        self, on_episode: Callable[[EpisodeResult], None], should_stop: Callable[[], bool]
    ) -> None:
        outbox = Outbox()
        for slot in self._slots:
            self._begin(slot, outbox)
        while True:
            self._ask(outbox)
            if not outbox.items and not any(s.is_due or s.episode is not None for s in self._slots):
                return
            lost, bad = self._exchange(outbox), self._bad
            self._rest_if_due(should_stop)
            if should_stop():
                return
            outbox = self._outbox = Outbox()
            for slot in self._slots:
                if slot.episode is not None:
                    if slot.episode.episode_id in bad:
                        self._drop(slot, slot.episode, outbox, on_episode)
                    elif slot.episode.episode_id in lost:
                        self._restart(slot, outbox)
                    elif self._claim():  # else its actions wait for the next allowance
                        self._advance(slot, outbox, on_episode)
                elif slot.is_due:
                    self._begin(slot, outbox)

    def _ask(self, outbox: Outbox) -> None:
        """Adds the next step of all whose agents observe now."""
        if self._asking:
            self._table.step(outbox, self._asking, self._seen, self._states)
            self._asking, self._seen, self._states = [], [], []

    # --- one simulation -----------------------------------------------------------------

    def _drop(
        self,
        slot: _Slot,
        episode: Episode,
        outbox: Outbox,
        on_episode: Callable[[EpisodeResult], None],
    ) -> None:
        """Leaves an episode that a bad value has ended, and begins the next one."""
        if self._mode == "eval":  # its place among the seeds stays
            on_episode(EpisodeResult({}, slot.num_steps, slot.seed, episode.episode_id))
        self._begin(slot, outbox)

    def _begin(self, slot: _Slot, outbox: Outbox) -> None:
        """Begins the next episode, or notes that it is due while none may begin."""
        slot.episode, slot.is_due = None, self._is_holding or self._has_no_more
        if slot.is_due:
            return
        try:
            slot.seed = next(self._seeds)
        except StopIteration:
            return
        self._restart(slot, outbox)

    def _restart(self, slot: _Slot, outbox: Outbox) -> None:
        """Begins an episode with the slot's seed."""
        slot.episode = None
        episode = self._told_parameters(slot) if self._client.gives_parameters else None
        slot.parameters = episode.parameters if episode else draw(self.parameters, slot.seed)
        reset = slot.simulation.reset
        if slot.parameters:
            reset = partial(reset, options=slot.parameters)
        observations, _ = self._guarded("reset", reset, slot.seed)
        slot.episode = episode or self._open(slot, outbox)
        slot.num_steps = 0
        slot.metrics = MetricCollector(self._metrics)
        self._observe(slot, observations)

    def _open(self, slot: _Slot, outbox: Outbox) -> Episode:
        return self._table.begin(
            outbox,
            slot.number,
            mode=self._mode,
            should_explore=self._should_explore,
            seed=slot.seed,
        )

    def _told_parameters(self, slot: _Slot) -> Episode:
        """Starts an episode in a message of its own: its reset waits for the answer."""
        while True:
            first = Outbox()
            episode = self._open(slot, first)
            if not self._exchange(first):
                return episode

    def _observe(self, slot: _Slot, observations: dict[str, Any]) -> None:
        slot.observations = observations
        self._asking.append(slot.number)
        self._seen.append(observations)
        self._states.append(self._state_of(slot.simulation))

    def _advance(
        self, slot: _Slot, outbox: Outbox, on_episode: Callable[[EpisodeResult], None]
    ) -> None:
        table, number = self._table, slot.number
        chosen = table.actions[number]
        actions = {agent_id: chosen[agent_id] for agent_id in slot.observations}
        while True:
            result = self._guarded("step", slot.simulation.step, actions)
            self._note(slot, result)
            terminations, truncations = result.terminations, result.truncations
            table.log(number, result.rewards, terminations, truncations, result.final_observations)
            if result.observations or result.is_over:
                break
            actions = {}  # nobody is asked in this step
            with self._changed:
                self._num_claimed += 1
        if not result.is_over:
            self._observe(slot, result.observations)
            return
        is_truncated = bool(truncations) and not terminations
        state = self._state_of(slot.simulation) if table.wants_state_at_end(number) else None
        metrics = slot.metrics.result(slot.num_steps)
        told = {name: values for name, values in metrics.items() if name != EPISODE_LENGTH}
        episode = table.end(outbox, number, is_truncated=is_truncated, state=state, metrics=told)
        self.num_episodes += 1
        on_episode(result_of(episode, slot.num_steps, slot.seed, metrics, slot.parameters))
        self._begin(slot, outbox)

    def _note(self, slot: _Slot, result: StepResult) -> None:
        num_earlier = len(result.earlier_infos)
        slot.num_steps += 1 + num_earlier
        self.num_env_steps += 1 + num_earlier
        if num_earlier:
            with self._changed:
                self._num_claimed += num_earlier
        if self._metrics:
            self._note_infos(slot, result)

    def _note_infos(self, slot: _Slot, result: StepResult) -> None:
        try:
            for infos in (*result.earlier_infos, result.infos):
                slot.metrics.add(infos)
        except SimulationError as error:
            raise SimulationFailed(str(error)) from error
