"""The feed: batches of episodes from the serving thread to the learning thread, and the gate.

A batch is *ahead* from its completion until the learner has made new weights from it (or asks for
the next batch). The gate is open, and agents may act, while at most `max_ahead` batches are ahead:
with 0, simulations wait for every update; with 1, a batch is collected while another is learned.
So policy lag is bounded by waiting, never by throwing samples away. With 0, only actions that were
answered before a batch was complete, and belong to the next one, are older than the weights, by
one version: at most one for each open episode.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode


class FeedClosed(Exception):
    """The server is stopping, so there is no more data. Raising it ends RLlib's sampling loop."""


@dataclass
class Chunk:
    """A piece of one episode, and the version of the weights at each of its steps."""

    episode: MultiAgentEpisode
    weights_seq_nos: list[int] = field(default_factory=list)

    @property
    def num_env_steps(self) -> int:
        return len(self.episode)


class Feed:
    """Hands batches of chunks to the learner, and opens and closes the gate.

    Args:
        max_ahead: batches that may be complete or being learned while agents act.
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
        """Sets the event loop whose frames wait at the gate."""
        self._loop = loop

    def put(self, batch: list[Chunk]) -> None:
        """Adds a complete batch; the gate is closed if too many are ahead."""
        with self._changed:
            if self._is_discarding or self._is_closed:
                return
            self._batches.append(batch)
            self._changed.notify_all()

    @property
    def is_open(self) -> bool:
        """Whether agents may act."""
        return self._num_ahead() <= self.max_ahead

    def when_open(self, go: Callable[[], None]) -> None:
        """Calls `go` as soon as the gate is open, perhaps at once; first come, first served."""
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
        """Notes that the last batch has been learned and the new weights are in use."""
        with self._changed:
            self._is_learning = False
        self._notify_gate()

    def discard(self) -> None:
        """Drops all data from now on: training has finished, and the server goes on acting."""
        with self._changed:
            self._is_discarding = True
            self._is_learning = False
            self._batches.clear()
        self._notify_gate()

    def close(self) -> None:
        """Makes `take` raise in the learning thread, and opens the gate for good."""
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
