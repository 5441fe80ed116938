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
from muxrl.client.episode_metrics import EPISODE_LENGTH, MetricCollector
from muxrl.client.episode_parameters import Parameters, draw
from muxrl.client.joint_episode import JointEpisode
from muxrl.client.lockstep import Lockstep, PlainStep
from muxrl.client.multiplexer import MultiplexingClient
from muxrl.client.outbox import Outbox
from muxrl.client.play_loop import EpisodeResult, How, PlayLoop, SimulationFailed, result_of

if TYPE_CHECKING:  # in `typing` since Python 3.11
    from typing_extensions import Unpack

__all__ = ["EnvLoop", "EpisodeResult", "SimulationFailed"]


@dataclass(eq=False)
class _Slot:
    """One simulation and its open episode."""

    simulation: Simulation
    metrics: MetricCollector
    episode: JointEpisode | None = None
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
        super().__init__(client, **how)
        self._slots = [_Slot(one, MetricCollector(self._metrics)) for one in simulations]
        self._lockstep = Lockstep(client)
        self._plain: list[PlainStep] = []
        """Of the turn that is being played."""

    @property
    def _is_between_episodes(self) -> bool:
        return all(slot.episode is None for slot in self._slots)

    def _play(
        self, on_episode: Callable[[EpisodeResult], None], should_stop: Callable[[], bool]
    ) -> None:
        outbox = Outbox()
        for slot in self._slots:
            self._begin(slot, outbox)
        while outbox.items or any(s.is_due or s.episode is not None for s in self._slots):
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
                        self._advance(slot, slot.episode, outbox, on_episode)
                elif slot.is_due:
                    self._begin(slot, outbox)
            plain, self._plain = self._plain, []
            for episode, observations, rewards, state in self._lockstep.pack(plain, outbox):
                episode.log(rewards, {}, {}, {})
                outbox.add(episode, episode.step(observations, state))

    # --- one simulation -----------------------------------------------------------------

    def _drop(
        self,
        slot: _Slot,
        episode: JointEpisode,
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
        episode = self._told_parameters(slot.seed) if self._client.gives_parameters else None
        slot.parameters = episode.parameters if episode else draw(self.parameters, slot.seed)
        reset = slot.simulation.reset
        if slot.parameters:
            reset = partial(reset, options=slot.parameters)
        observations, _ = self._guarded("reset", reset, slot.seed)
        if episode is None:
            episode = self._new_episode(slot.seed)
            outbox.add(episode, episode.start())
        slot.episode = episode
        slot.observations, slot.num_steps = observations, 0
        slot.metrics = MetricCollector(self._metrics)
        outbox.add(slot.episode, slot.episode.step(observations, self._state_of(slot.simulation)))

    def _new_episode(self, seed: int | None) -> JointEpisode:
        return self._client.new_episode(self._mode, should_explore=self._should_explore, seed=seed)

    def _told_parameters(self, seed: int | None) -> JointEpisode:
        """Starts an episode in a message of its own: its reset waits for the answer."""
        while True:
            episode = self._new_episode(seed)
            first = Outbox()
            first.add(episode, episode.start())
            if not self._exchange(first):
                return episode

    def _advance(
        self,
        slot: _Slot,
        episode: JointEpisode,
        outbox: Outbox,
        on_episode: Callable[[EpisodeResult], None],
    ) -> None:
        actions = episode.take_actions(slot.observations)
        while True:
            result = self._guarded("step", slot.simulation.step, actions)
            self._note(slot, result)
            is_plain = not (result.terminations or result.truncations or result.final_observations)
            if is_plain and result.observations and not result.is_over:
                slot.observations, state = result.observations, self._state_of(slot.simulation)
                self._plain.append(PlainStep(episode, slot.observations, result.rewards, state))
                return
            self._lockstep.settle(episode)
            episode.log(
                result.rewards, result.terminations, result.truncations, result.final_observations
            )
            if result.observations or result.is_over:
                break
            actions = {}  # nobody is asked in this step
            with self._changed:
                self._num_claimed += 1
        if not result.is_over:
            slot.observations = result.observations
            outbox.add(episode, episode.step(result.observations, self._state_of(slot.simulation)))
            return
        is_truncated = bool(result.truncations) and not result.terminations
        state = self._state_of(slot.simulation) if episode.wants_state_at_end else None
        metrics = slot.metrics.result(slot.num_steps)
        told = {name: values for name, values in metrics.items() if name != EPISODE_LENGTH}
        end = episode.end({}, is_truncated=is_truncated, state=state, metrics=told)
        outbox.add(episode, end)
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

    def _leave_episodes(self) -> list[JointEpisode | None]:
        episodes = [slot.episode for slot in self._slots]
        for slot in self._slots:
            slot.episode = None
        return episodes
