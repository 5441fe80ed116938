"""What every loop of episodes has: it can be held, limited, and knows what a lost server means."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Literal, TypedDict

from muxrl.client.adapters.simulation import SimulationError
from muxrl.client.episode import Episode
from muxrl.client.episode_metrics import EpisodeMetrics
from muxrl.client.episode_parameters import Parameters, as_metrics
from muxrl.client.errors import ClientError, EpisodeLost, RefusedByServer, RunIsOver, ServerLost
from muxrl.client.multiplexer import MultiplexingClient
from muxrl.client.outbox import Outbox
from muxrl.protocol.messages import Mode
from muxrl.protocol.user_errors import told, user_frame

logger = logging.getLogger(__name__)

_MOST_BAD = 20
"""Episodes in a row that a bad value may end: more are no accident."""
_LOOK_S = 0.05
"""How often a loop that is held asks whether it is to stop."""
_NOTHING: Set[str] = frozenset()


@dataclass(frozen=True)
class EpisodeResult:
    """One episode that was played to its end.

    `returns` are sums of raw rewards, by agent id; `num_steps` counts env steps; `seed` is what
    the simulation was reset with, None for its own choice; `episode_id` is the servers' name of it;
    `metrics` is what the infos say of it, its length, and returns against members of pools;
    `members` are these, by server id.
    """

    returns: dict[str, float]
    num_steps: int
    seed: int | None
    episode_id: str = field(default="", compare=False)
    metrics: EpisodeMetrics = field(default_factory=dict)
    members: dict[str, str] = field(default_factory=dict, compare=False)


def result_of(
    episode: Episode,
    num_steps: int,
    seed: int | None,
    metrics: EpisodeMetrics,
    parameters: Parameters,
) -> EpisodeResult:
    """Returns the result of an episode that has ended."""
    return EpisodeResult(
        episode.returns,
        num_steps,
        seed,
        episode.episode_id,
        metrics | as_metrics(parameters) | episode.returns_against,
        episode.members,
    )


class SimulationFailed(RuntimeError):
    """The simulation raised; its own exception is the cause.

    Attributes:
        place: where in the user's code, and of which type, to be compared; "" if not known.
    """

    place: str = ""

    @classmethod
    def of(cls, verb: str, error: BaseException, cure: str = "") -> SimulationFailed:
        """Returns what to raise from an exception in one of the simulation's methods."""
        story = str(error) if isinstance(error, SimulationError) else told(error)
        failed = cls(f"{story}, in {verb}() of the simulation{cure}")
        frame = user_frame(error)
        failed.place = f"{frame.filename}:{frame.lineno} {type(error)}" if frame else story
        if isinstance(error, OSError):  # from outside, and may be gone the next time
            failed.place = ""
        return failed


class How(TypedDict, total=False):
    """How a loop plays.

    Args:
        mode: "train", or "eval": measured, never trained on.
        should_explore: None: in mode "train" only; a dict: by server id.
        seeds: what to reset with, one for each episode; the loop ends with them. None: the
            simulations choose.
        on_lost: what happens when a server is lost, or does not know an episode any more: "raise",
            or "restart": the episodes that it concerns are closed as truncated on the other
            servers, and begin again. A server that is lost a second time before it has answered
            anything is an error in any case.
        on_bad_value: what a number ends that is not finite, or beyond a limit: "stop": the loop;
            "episode": that episode, and the next one begins. Of one that was to be measured the
            result is without returns.
        metrics: what of the infos becomes a metric of the episode; see `MetricCollector`. A
            gateway is told of them.
        parameters: of episodes, by name, see `muxrl.client.episode_parameters.draw`. They become
            metrics, too.
    """

    mode: Mode
    should_explore: bool | Mapping[str, bool] | None
    seeds: Iterator[int | None] | None
    on_lost: Literal["raise", "restart"]
    on_bad_value: Literal["stop", "episode"]
    metrics: Mapping[str, str] | None
    parameters: Mapping[str, Any] | None


class PlayLoop(ABC):
    """Plays episodes until it is told to stop; subclasses know what is stepped, and how.

    Args:
        client: where actions come from.
        num_slots: episodes that are open at a time.
        mode, should_explore, seeds, on_lost, on_bad_value, metrics, parameters: see `How`.
    """

    def __init__(
        self,
        client: MultiplexingClient,
        num_slots: int,
        *,
        mode: Mode = "train",
        should_explore: bool | Mapping[str, bool] | None = None,
        seeds: Iterator[int | None] | None = None,
        on_lost: Literal["raise", "restart"] = "raise",
        on_bad_value: Literal["stop", "episode"] = "stop",
        metrics: Mapping[str, str] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
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
        self._table = client.new_table(num_slots)
        self._mode: Mode = mode
        self._should_explore = should_explore
        self._seeds = repeat(None) if seeds is None else seeds
        self._metrics = metrics or {}
        self.parameters = parameters or {}
        """Of the episodes that begin from now on; may be set from any thread."""
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
        self._outbox = Outbox()
        """What was put together last."""

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
        self._is_playing = True
        self._outbox = Outbox()
        try:
            self._rest_if_due(should_stop)
            self._play(on_episode, should_stop)
        except RunIsOver as over:
            logger.info("%s", over)
        except SimulationFailed:
            self._tell_ends(self._outbox)
            raise
        finally:
            left = [e.episode_id for e in self._table.by_slot if e is not None]
            self._client.abort_episode(left, "the simulation stopped")
            with self._changed:
                self._is_playing = False
                self._is_used_up = True
                self._changed.notify_all()

    @abstractmethod
    def _play(
        self, on_episode: Callable[[EpisodeResult], None], should_stop: Callable[[], bool]
    ) -> None: ...

    @property
    @abstractmethod
    def _is_between_episodes(self) -> bool: ...

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
        return self._is_between_episodes or time.monotonic() >= self._hold_in_mid_episode_at

    def _rest_if_due(self, should_stop: Callable[[], bool]) -> None:
        if not (self._is_holding or self._has_no_more) or not self._has_to_rest():
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

    # --- what servers and simulations do wrong -------------------------------------------

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
            lost = outbox.episode_ids
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
                    if self._num_bad_in_a_row >= _MOST_BAD:
                        failure.args = (f"{failure}; {_MOST_BAD} episodes before ended so, too",)
                    raise failure
                else:
                    logger.warning("an episode begins again: %s", failure)
            lost = failures.keys() - self._bad if failures else _NOTHING
            if self._num_bad_in_a_row and _has_ended_one(outbox, failures.keys()):
                self._num_bad_in_a_row = 0
        self.num_lost_episodes += len(lost)
        return lost

    def _may_drop(self, failure: ClientError) -> bool:
        is_bad = isinstance(failure, RefusedByServer) and failure.is_unsound
        return is_bad and self._on_bad_value == "episode" and self._num_bad_in_a_row < _MOST_BAD

    def _state_of(self, simulation: Any) -> Any:
        if not self._client.wants_state:
            return None
        try:
            return simulation.state()
        except (Exception, SystemExit) as error:
            cure = ", asked for the global state; with use_global_state: false servers do without"
            raise SimulationFailed.of("state", error, cure) from error

    def _guarded(self, verb: str, call: Callable[[Any], Any], argument: Any) -> Any:
        try:
            return call(argument)
        except (Exception, SystemExit) as error:  # this one would end the process in silence
            raise SimulationFailed.of(verb, error) from error

    def _tell_ends(self, outbox: Outbox) -> None:
        """Sends only the ends of an unsent outbox: those episodes are over, not aborted."""
        with contextlib.suppress(ClientError):
            self._client.exchange(outbox.ends)


def _has_ended_one(outbox: Outbox, failed: Set[str]) -> bool:
    return any(episode.episode_id not in failed for episode in outbox.ended)
