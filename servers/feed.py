"""The feed: finished data from the thread that serves to the thread that learns.

It is also the gate. A batch is *ahead* from the moment it is complete until the learner has
answered it with new weights (or asks for the next one). Acting goes on while at most
`max_ahead` batches are ahead: 0 means that the simulations wait for every update, so no
action is older than the weights; 1 means that one batch is collected while one is learnt.
That bounds policy lag by waiting, never by throwing samples away.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode


class FeedClosed(Exception):
    """The server is stopping: there will be no more data. It ends RLlib's sampling loop."""


@dataclass
class Chunk:
    """A piece of one episode, with the weights version that chose each of its actions."""

    episode: MultiAgentEpisode
    weights_seq_nos: list[int] = field(default_factory=list)

    @property
    def num_env_steps(self) -> int:
        return len(self.episode)


class Feed:
    """Hands batches of chunks over, one way, and keeps the gate.

    Args:
        max_ahead: batches that may be complete or in learning while acting goes on.
    """

    def __init__(self, max_ahead: int) -> None:
        self.max_ahead = max_ahead
        self._batches: deque[list[Chunk]] = deque()
        self._is_learning = False
        self._is_closed = False
        self._is_discarding = False
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    # --- the serving thread -------------------------------------------------------------

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tells whose event loop waits at the gate."""
        self._loop = loop

    def put(self, batch: list[Chunk]) -> None:
        """Adds a complete batch and closes the gate if that is one too many."""
        with self._changed:
            if self._is_discarding or self._is_closed:
                return
            self._batches.append(batch)
            self._changed.notify_all()

    @property
    def is_open(self) -> bool:
        """Whether acting may go on."""
        return self._num_ahead() <= self.max_ahead

    def when_open(self, go: Callable[[], None]) -> None:
        """Calls `go` as soon as acting may go on, which may be now; first come, first served."""
        self._waiting.append(go)
        self._let_through()

    def _let_through(self) -> None:
        while self._waiting and self.is_open:
            self._waiting.popleft()()

    # --- the learning thread ------------------------------------------------------------

    def take(self) -> list[Chunk]:
        """Blocks until a batch is complete and returns it.

        Raises:
            FeedClosed: the server is stopping.
        """
        self.finish_learning()
        with self._changed:
            while not self._batches:
                if self._is_closed:
                    raise FeedClosed("the policy server is stopping")
                self._changed.wait()
            if self._is_closed:
                raise FeedClosed("the policy server is stopping")
            self._is_learning = True
            return self._batches.popleft()

    def finish_learning(self) -> None:
        """Says that the batch taken last has been learnt: its weights are in use."""
        with self._changed:
            self._is_learning = False
        self._notify_gate()

    def discard(self) -> None:
        """Throws away all data from now on: the trainer has finished, the server acts on."""
        with self._changed:
            self._is_discarding = True
            self._is_learning = False
            self._batches.clear()
        self._notify_gate()

    def close(self) -> None:
        """Ends `take` in the learning thread; opens the gate for good."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._notify_gate()

    # --- both ---------------------------------------------------------------------------

    def _num_ahead(self) -> int:
        if self._is_closed or self._is_discarding:
            return -1
        return len(self._batches) + self._is_learning

    def _notify_gate(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._let_through)
