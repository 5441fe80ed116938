"""Policies that learn in a thread, and are saved between two updates: what all of them share."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muxrl.servers.checkpoints.resuming import Normalization
from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.feed import Feed
from muxrl.servers.episodes.store import EpisodeStore
from muxrl.servers.training.callbacks import CallbackFailed, Callbacks
from muxrl.servers.training.policies import SAVE_TIMEOUT_S, Record, ServerProblem
from muxrl.servers.training.thread import Learning, LearningThread


def feed_of(plan: ServerPlan) -> Feed:
    """Returns the feed of a server that learns, whose gate is as its plan says."""
    return Feed(0 if plan.while_learning == "wait" else max(1, plan.max_policy_lag))


class SavedPolicies(ABC):
    """See `muxrl.servers.training.policies.Policies`; a subclass has `acting`, and writes itself.

    Args:
        plan: the server.
        learning: what the thread trains.
        store: its episodes.
        feed: where its batches come from.
        normalization: of what it observes and is paid.
        on_failure: see `LearningThread`.

    Raises:
        ServerProblem: its callbacks cannot be made.
    """

    acting: Any

    def __init__(
        self,
        plan: ServerPlan,
        learning: Learning,
        store: EpisodeStore,
        feed: Feed,
        normalization: Normalization,
        *,
        on_failure: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._learning = learning
        self.store = store
        self.feed = feed
        self._normalization = normalization
        callbacks = None
        if plan.callbacks:
            try:
                callbacks = Callbacks(plan.callbacks)
            except CallbackFailed as error:
                raise ServerProblem(f"server {plan.server_id!r}: {error}") from error
            store.ended = callbacks.ended
            feed.on_taken = callbacks.shape
        self.thread = LearningThread(
            learning,
            plan,
            feed,
            store.counts,
            on_failure=on_failure,
            callbacks=callbacks,
        )

    @property
    def iteration(self) -> int:
        return self.thread.iteration

    @property
    def policy_lag(self) -> tuple[float, int] | None:
        lag = self._learning.policy_lag
        return lag.mean, lag.max

    def start(self) -> None:
        self.thread.start()

    def finish(self, timeout_s: float) -> bool:
        has_ended = self.thread.stop(timeout_s)
        self._normalization.observing.freeze()  # what acts from now on does not change any more
        return has_ended

    def drain_records(self) -> list[Record]:
        return self.thread.drain_records()

    def save(self, path: Path, timeout_s: float = SAVE_TIMEOUT_S) -> Path | None:
        self.thread.between_updates(functools.partial(self._write, path), timeout_s)
        return path

    @abstractmethod
    def _write(self, path: Path) -> None:
        """Writes a checkpoint; no update is under way."""
