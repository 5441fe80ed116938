"""The feed: brings batches from the serving thread to the learning thread, and has the gate.

A batch is *ahead* from its completion until the learner has made new weights from it (or asks for
the next batch). The gate is open, and agents may act, while at most `max_ahead` batches are ahead:
with 0, simulations wait for every update; with 1, a batch is collected while another is learned.
So policy lag is bounded by waiting, never by throwing samples away.

A learner that is slower than the simulations would hold them once a batch, until it has caught up.
A learner that reports the progress of its update (`note_progress`) holds them a little at a time:
the last batch that may be collected grows no faster than the update advances.

With 0, only actions that were answered before a batch was complete, and belong to the next one, are
older than the weights, by one version: at most one action for each open episode.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from muxrl.servers.episodes.trajectories import Chunk

T = TypeVar("T")

_LOOP_CHECK_S = 0.2
"""How often a thread that waits for the serving thread checks whether that has ended."""


class FeedClosed(Exception):
    """The server is stopping, so no more data will come. Ends RLlib's sampling loop when raised."""


@dataclass(frozen=True)
class Activity:
    """How a server has spent its time, in seconds."""

    time_s: float
    """Time since the server was made."""
    learning_s: float
    """Time with a batch at the learner."""
    held_s: float
    """Time with simulations waiting at the closed gate."""


class Feed:
    """Hands batches of chunks to the learner, and opens and closes the gate.

    Args:
        max_ahead: number of batches that may be complete or in learning while agents act.
        acts_while_learning: if False, all agents wait during an update, also in evaluations, and
            `max_ahead` is 0.
    """

    def __init__(self, max_ahead: int, *, acts_while_learning: bool = True) -> None:
        self.max_ahead = max_ahead if acts_while_learning else 0
        self.acts_while_learning = acts_while_learning
        self.share_collected: Callable[[], float] = lambda: 0.0
        """Returns the share of the next batch that was collected, 0 to 1."""
        self.on_taken: Callable[[list[Chunk]], None] = lambda batch: None
        """Called in the learning thread with each batch that it takes."""
        self._share_learned: float | None = None
        self._share_at_first = 0.0
        self._batches: deque[list[Chunk]] = deque()
        self._is_learning = False
        self._is_closed = False
        self._is_discarding = False
        self._tasks: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._began_at = self._noted_at = time.monotonic()
        self._learning_s = self._held_s = 0.0

    # --- the serving thread -------------------------------------------------------------

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sets the event loop whose frames wait at the gate."""
        self._loop = loop

    def put(self, batch: list[Chunk]) -> None:
        """Adds a complete batch; the gate closes if too many are ahead.

        A batch that comes after `close` is kept for the last checkpoint: simulations play on while
        the learner ends its update.
        """
        with self._changed:
            if self._is_discarding:
                return
            self._note_time()
            self._batches.append(batch)
            self._changed.notify_all()

    @property
    def is_open(self) -> bool:
        """Whether agents may act."""
        ahead, learned = self._num_ahead(), self._share_learned
        if ahead != self.max_ahead or learned is None:
            return ahead <= self.max_ahead
        left = 1.0 - self._share_at_first
        return self.share_collected() - self._share_at_first <= learned * left

    @property
    def num_ahead(self) -> int:
        """Batches that are complete and not learned yet; 0 when learning has ended."""
        return max(0, self._num_ahead())

    def when_open(self, go: Callable[[], None]) -> None:
        """Calls `go` as soon as the gate is open, maybe at once; first come, first served."""
        if not self._waiting and self.is_open:
            go()
            return
        with self._changed:
            self._note_time()
            self._waiting.append(go)
        self._let_through()  # the gate may have opened meanwhile

    def _let_through(self) -> None:
        while self._waiting and self.is_open:
            with self._changed:
                self._note_time()
                go = self._waiting.popleft()
            go()

    # --- the learning thread ------------------------------------------------------------

    def take(self) -> list[Chunk]:
        """Blocks until a batch is complete and returns it; meanwhile it runs errands.

        The batch before counts as learned now at the latest, see `finish_learning`.

        Raises:
            FeedClosed: the server is stopping.
            Exception: what `on_taken` raises.
        """
        self.finish_learning()
        while True:
            self.run_tasks()
            with self._changed:
                if self._tasks:
                    continue
                if self._is_closed:
                    raise FeedClosed("the policy server is stopping")
                if self._batches:
                    self._note_time()
                    self._is_learning = True
                    batch = self._batches.popleft()
                    break
                self._changed.wait()
        self.on_taken(batch)
        return batch

    def run_tasks(self) -> None:
        """Runs the tasks that were given to `ask`."""
        while True:
            with self._changed:
                if not self._tasks:
                    return
                task = self._tasks.popleft()
            task()

    def note_progress(self, share: float) -> None:
        """Notes the progress of the update, 0 to 1; the part under way counts as done.

        A learner whose update has a single part need not call this, as it would always report 1.
        """
        if self._share_learned is None:
            self._share_at_first = self.share_collected()
        self._share_learned = share
        if self.is_open:
            self._notify_gate()

    def finish_learning(self) -> None:
        """Notes that the last batch has been learned and the new weights are in use."""
        with self._changed:
            self._note_time()
            self._is_learning = False
            self._share_learned = None
        self._notify_gate()

    def discard(self) -> None:
        """Takes no more data: training has finished, and the server continues acting."""
        self._is_discarding = True
        self.finish_learning()

    def close(self) -> None:
        """Makes `take` raise in the learning thread, and opens the gate for good."""
        with self._changed:
            self._note_time()
            self._is_closed = True
            self._changed.notify_all()
        self._notify_gate()

    # --- any thread ---------------------------------------------------------------------

    def ask(self, task: Callable[[], None]) -> None:
        """Lets the learning thread run a task, which must not raise, before it takes a batch."""
        with self._changed:
            self._tasks.append(task)
            self._changed.notify_all()

    def on_serving_thread(self, read: Callable[[], T]) -> T:
        """Calls `read` between two frames, when nothing is being recorded; returns its result."""
        result: Future[T] = Future()

        def answer() -> None:
            try:
                result.set_result(read())
            except Exception as error:  # noqa: BLE001, raised again in the waiting thread
                result.set_exception(error)

        try:
            if self._loop is None:
                return read()
            self._loop.call_soon_threadsafe(answer)
        except RuntimeError:  # the loop is closed
            return read()
        while True:
            try:
                return result.result(_LOOP_CHECK_S)
            except TimeoutError:
                if self._loop.is_closed() and not result.done():
                    return read()

    @property
    def unlearned(self) -> list[list[Chunk]]:
        """Complete batches that were not learned, also those that `discard` has left over."""
        with self._changed:
            return [list(batch) for batch in self._batches]

    @property
    def activity(self) -> Activity:
        """How the server has spent its time until now."""
        with self._changed:
            self._note_time()
            return Activity(self._noted_at - self._began_at, self._learning_s, self._held_s)

    # --- both ---------------------------------------------------------------------------

    def _num_ahead(self) -> int:
        if self._is_closed or self._is_discarding:
            return -1
        return len(self._batches) + self._is_learning

    def _note_time(self) -> None:
        """Adds the time since the last change to the sums; to be called before a change, locked."""
        now = time.monotonic()
        self._learning_s += (now - self._noted_at) * self._is_learning
        self._held_s += (now - self._noted_at) * bool(self._waiting)
        self._noted_at = now

    def _notify_gate(self) -> None:
        # A caller that begins to wait after this looks at the gate again; see `when_open`.
        if self._waiting and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._let_through)
