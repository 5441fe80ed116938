"""Drives one simulation, or many in lockstep, with one message a server for all of them.

The end of an episode, the start of the next and its first step share a message, so that an
episode of `n` steps costs `n` round trips; `k` simulations cost no more than one.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Literal

from muxrl.client.adapters.simulation import Simulation, SimulationError, StepResult
from muxrl.client.episode_metrics import EPISODE_LENGTH, EpisodeMetrics, MetricCollector
from muxrl.client.errors import ClientError, EpisodeLost, RefusedByServer, RunIsOver, ServerLost
from muxrl.client.joint_episode import JointEpisode
from muxrl.client.multiplexer import MultiplexingClient, Outbox
from muxrl.protocol.messages import EndEpisode, Mode

logger = logging.getLogger(__name__)

_MOST_BAD = 20
"""Episodes in a row that a bad value may end: more are no accident."""
_LOOK_S = 0.05
"""How often a loop that is held asks whether it is to stop."""


@dataclass(frozen=True)
class EpisodeResult:
    """One episode that was played to its end.

    `returns` are sums of raw rewards, by agent id; `num_steps` counts env steps; `seed` is what
    the simulation was reset with, None for its own choice; `episode_id` is the servers' name of it;
    `metrics` is what the infos say of it, and its length.
    """

    returns: dict[str, float]
    num_steps: int
    seed: int | None
    episode_id: str = field(default="", compare=False)
    metrics: EpisodeMetrics = field(default_factory=dict)


class SimulationFailed(RuntimeError):
    """The simulation raised; its own exception is the cause."""


@dataclass
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


class EnvLoop:
    """Plays episodes until it is told to stop.

    Args:
        simulations: played in lockstep.
        client: where actions come from.
        mode: "train", or "eval": measured, never trained on.
        should_explore: None: in mode "train" only; a dict: by server id.
        seeds: what to reset with, one for each episode; the loop ends with them. None: the
            simulations choose.
        on_lost: what happens when a server is lost, or does not know an episode any more: "raise",
            or "restart": the episodes that it concerns are closed as truncated on the other
            servers, and begin again with the same seeds. A server that is lost a second time
            before it has answered anything is an error in any case.
        on_bad_value: what a number ends that is not finite, or beyond a limit: "stop": the loop;
            "episode": that episode, and the next one begins. Of one that was to be measured the
            result is without returns.
        metrics: what of the infos becomes a metric of the episode; see `MetricCollector`. A
            gateway is told of them.

    Raises:
        AssignmentError: an agent of a simulation belongs to no server.
    """

    def __init__(
        self,
        simulations: Sequence[Simulation],
        client: MultiplexingClient,
        *,
        mode: Mode = "train",
        should_explore: bool | Mapping[str, bool] | None = None,
        seeds: Iterator[int | None] | None = None,
        on_lost: Literal["raise", "restart"] = "raise",
        on_bad_value: Literal["stop", "episode"] = "stop",
        metrics: Mapping[str, str] | None = None,
    ) -> None:
        for simulation in simulations:
            client.check_agents(simulation.possible_agents)
        self.num_env_steps = 0
        self.num_episodes = 0
        self.num_lost_episodes = 0
        """Episodes that were not ended on every server, because one was lost."""
        self.num_bad_episodes = 0
        """Episodes that were closed at a value that a server refused."""
        self._num_bad_in_a_row = 0
        self._on_lost = on_lost
        self._on_bad_value = on_bad_value
        self._bad: set[str] = set()
        self._is_server_lost = False
        self._client = client
        self._mode: Mode = mode
        self._should_explore = should_explore
        self._seeds = repeat(None) if seeds is None else seeds
        self._metrics = metrics or {}
        self._slots = [_Slot(one, MetricCollector(self._metrics)) for one in simulations]
        # Shared with the threads that hold the loop; `_is_holding` is read without the lock.
        self._lock = threading.RLock()  # by itself taken faster, once a step
        self._changed = threading.Condition(self._lock)
        self._is_holding = False
        self._hold_in_mid_episode_at = 0.0
        self._is_playing = False
        self._is_held = False
        self._limit = math.inf
        self._num_claimed = 0
        self._is_used_up = False

    def run(
        self,
        on_episode: Callable[[EpisodeResult], None] = lambda result: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Plays until the seeds are used up, `should_stop`, asked once a step, returns True, or the
        run behind a gateway is over.

        Episodes that are open then are closed early: servers keep them as truncated.

        Args:
            on_episode: called with each finished episode.
            should_stop: True ends the loop after the current step.

        Raises:
            SimulationFailed: a simulation raised; its episode and all others are closed.
            ClientError: see `MultiplexingClient.get_action`.
        """
        outbox = Outbox()
        self._is_playing = True
        try:
            if self._is_holding or self._has_no_more:
                self._rest_if_due(should_stop)
            for slot in self._slots:
                self._begin(slot, outbox)
            while outbox.items or any(s.is_due or s.episode is not None for s in self._slots):
                lost = self._exchange(outbox)
                if self._is_holding or self._has_no_more:
                    self._rest_if_due(should_stop)
                if should_stop():
                    return
                outbox = Outbox()
                for slot in self._slots:
                    if slot.episode is not None:
                        if slot.episode.episode_id in self._bad:
                            self._drop(slot, slot.episode, outbox, on_episode)
                        elif slot.episode.episode_id in lost:
                            self._restart(slot, outbox)
                        elif self._claim():  # else its actions wait for the next allowance
                            self._advance(slot, slot.episode, outbox, on_episode)
                    elif slot.is_due and not (self._is_holding or self._has_no_more):
                        self._begin(slot, outbox)
        except RunIsOver as over:
            logger.info("%s", over)
        except SimulationFailed:
            self._tell_ends(outbox)
            raise
        finally:
            self._close_open_episodes()
            with self._changed:
                self._is_playing = False
                self._is_used_up = True
                self._changed.notify_all()

    # --- held by another thread ---------------------------------------------------------

    def hold(self, grace_s: float) -> None:
        """Asks the loop to pause, which it does where episodes end: none begins any more.

        Args:
            grace_s: for so long; then it pauses between two steps, whatever is being played.
        """
        with self._changed:
            self._hold_in_mid_episode_at = time.monotonic() + grace_s
            self._is_holding = True

    def wait_held(self, timeout_s: float) -> bool:
        """Waits until the loop has paused or ended; returns whether that was in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_held or not self._is_playing, timeout_s)

    def release(self) -> None:
        """Lets the loop go on: open episodes where they stand, and those that are due begin."""
        with self._changed:
            self._is_holding = False
            self._changed.notify_all()

    # --- no more than it is allowed -----------------------------------------------------

    def limit(self, num_env_steps: int) -> None:
        """Allows so many env steps, and no episode begins after them; without it there is no end.

        A loop that has used them up pauses, in the middle of episodes, too. Held then, it plays
        them to their ends.
        """
        with self._changed:
            self._limit = num_env_steps

    def allow(self, num_env_steps: int) -> None:
        """Allows so many env steps more, and waits until all are used up, or the loop has ended."""
        with self._changed:
            self._limit += num_env_steps
            self._is_used_up = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_used_up)

    def give_back(self) -> int:
        """Takes back half of what is left of the env steps that were allowed; returns how many."""
        with self._changed:
            half = max(0, int(self._limit) - self._num_claimed) // 2
            self._limit -= half
            return half

    @property
    def _has_no_more(self) -> bool:
        return self._num_claimed >= self._limit

    def _claim(self) -> bool:
        """Takes one env step of those that are left; while the loop is held, in any case."""
        with self._lock:
            if self._has_no_more and not self._is_holding:
                return False
            self._num_claimed += 1
            return True

    def _has_to_rest(self) -> bool:
        if not self._is_holding:
            return self._has_no_more
        is_between = all(slot.episode is None for slot in self._slots)
        return is_between or time.monotonic() >= self._hold_in_mid_episode_at

    def _rest_if_due(self, should_stop: Callable[[], bool]) -> None:
        if not self._has_to_rest():
            return
        try:  # whoever holds the loop counts, or has servers save
            self._client.tell_played()
        except ClientError as error:  # the next step meets it again
            logger.warning("what was played could not be told: %s", error)
        with self._changed:
            while self._has_to_rest() and not should_stop():
                self._is_held, self._is_used_up = self._is_holding, self._has_no_more
                self._changed.notify_all()
                self._changed.wait(_LOOK_S)
            self._is_held = False

    # --- one simulation -----------------------------------------------------------------

    def _exchange(self, outbox: Outbox) -> Set[str]:
        """Exchanges an outbox; returns the ids of episodes that a server lost.

        Raises:
            ClientError: an item was refused, or a loss is an error; see `on_lost`.
        """
        lost: Set[str]
        self._bad = set()
        try:
            failures = self._client.exchange(outbox)
        except ServerLost as error:
            if self._on_lost == "raise" or self._is_server_lost:
                raise
            self._is_server_lost = True
            lost = {e.episode_id for owners in outbox.owners.values() for e in owners}
            logger.warning("%d episodes are closed: %s", len(lost), error)
        else:
            self._is_server_lost = False
            for episode_id, failure in failures.items():
                if self._may_drop(failure):
                    self._bad.add(episode_id)
                    self.num_bad_episodes += 1
                    self._num_bad_in_a_row += 1
                    logger.warning("an episode ends at a bad value: %s", failure)
                elif self._on_lost == "raise" or not isinstance(failure, EpisodeLost):
                    raise failure
                else:
                    logger.warning("an episode begins again: %s", failure)
            lost = failures.keys() - self._bad
            if self._num_bad_in_a_row and _has_ended_one(outbox, failures.keys()):
                self._num_bad_in_a_row = 0
        self.num_lost_episodes += len(lost)
        return lost

    def _may_drop(self, failure: ClientError) -> bool:
        is_bad = isinstance(failure, RefusedByServer) and failure.is_unsound
        return is_bad and self._on_bad_value == "episode" and self._num_bad_in_a_row < _MOST_BAD

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
        if self._is_holding or self._has_no_more:
            slot.episode, slot.is_due = None, True
        else:
            self._begin(slot, outbox)

    def _begin(self, slot: _Slot, outbox: Outbox) -> None:
        slot.episode, slot.is_due = None, False
        try:
            slot.seed = next(self._seeds)
        except StopIteration:
            return
        self._restart(slot, outbox)

    def _restart(self, slot: _Slot, outbox: Outbox) -> None:
        """Begins an episode with the slot's seed."""
        slot.episode = None
        observations, _ = self._guarded("reset", slot.simulation.reset, slot.seed)
        slot.episode = self._client.new_episode(self._mode, should_explore=self._should_explore)
        slot.observations, slot.num_steps = observations, 0
        slot.metrics = MetricCollector(self._metrics)
        outbox.add(slot.episode, slot.episode.start())
        outbox.add(slot.episode, slot.episode.step(observations, self._state(slot)))

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
            self._note(slot, episode, result)
            if result.observations or result.is_over:
                break
            actions = {}  # nobody is asked in this step
            with self._changed:
                self._num_claimed += 1
        if not result.is_over:
            slot.observations = result.observations
            outbox.add(episode, episode.step(result.observations, self._state(slot)))
            return
        is_truncated = bool(result.truncations) and not result.terminations
        state = self._state(slot) if episode.wants_state_at_end else None
        metrics = slot.metrics.result(slot.num_steps)
        told = {name: values for name, values in metrics.items() if name != EPISODE_LENGTH}
        end = episode.end({}, is_truncated=is_truncated, state=state, metrics=told)
        outbox.add(episode, end)
        self.num_episodes += 1
        on_episode(
            EpisodeResult(episode.returns, slot.num_steps, slot.seed, episode.episode_id, metrics)
        )
        if self._is_holding or self._has_no_more:
            slot.episode, slot.is_due = None, True
        else:
            self._begin(slot, outbox)

    def _note(self, slot: _Slot, episode: JointEpisode, result: StepResult) -> None:
        slot.num_steps += 1
        self.num_env_steps += 1
        if self._metrics:
            self._note_infos(slot, result)
        episode.log(
            result.rewards, result.terminations, result.truncations, result.final_observations
        )

    def _note_infos(self, slot: _Slot, result: StepResult) -> None:
        try:
            for infos in (*result.earlier_infos, result.infos):
                slot.metrics.add(infos)
        except SimulationError as error:
            raise SimulationFailed(str(error)) from error

    def _state(self, slot: _Slot) -> Any:
        if not self._client.wants_state:
            return None
        try:
            return slot.simulation.state()
        except (Exception, SystemExit) as error:
            raise SimulationFailed(
                f"the simulation raised in state(), which servers ask for the global state: "
                f"{type(error).__name__}: {error}; with use_global_state: false they do without"
            ) from error

    def _guarded(self, verb: str, call: Callable[[Any], Any], argument: Any) -> Any:
        try:
            return call(argument)
        except (Exception, SystemExit) as error:  # this one would end the process in silence
            raise SimulationFailed(
                f"the simulation raised in {verb}(): {type(error).__name__}: {error}"
            ) from error

    def _tell_ends(self, outbox: Outbox) -> None:
        """Sends only the ends of an unsent outbox: those episodes are over, not aborted."""
        ends = Outbox()
        for server_id, items in outbox.items.items():
            for episode, item in zip(outbox.owners[server_id], items, strict=True):
                if isinstance(item, EndEpisode):
                    ends.add(episode, {server_id: item})
        with contextlib.suppress(ClientError):
            self._client.exchange(ends)

    def _close_open_episodes(self) -> None:
        episodes = [s.episode for s in self._slots if s.episode is not None and s.episode.is_open]
        self._client.abort_episode([e.episode_id for e in episodes], "the simulation stopped")
        for slot in self._slots:
            slot.episode = None


def _has_ended_one(outbox: Outbox, failed: Set[str]) -> bool:
    ends = (i for items in outbox.items.values() for i in items if isinstance(i, EndEpisode))
    return any(end.episode_id not in failed for end in ends)
