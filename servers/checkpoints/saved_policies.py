"""Policies that learn in a thread, and are saved between two updates: what all of them share."""

from __future__ import annotations

import dataclasses
import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import structs

from muxrl.protocol.messages import ServerWarning
from muxrl.servers.checkpoints.checkpoint import Checkpoint, save_checkpoint
from muxrl.servers.checkpoints.resuming import (
    Normalization,
    State,
    get_random_state,
    raised_by,
    set_random_state,
)
from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.columns import pack_chunks, unpack_chunks
from muxrl.servers.episodes.counts import EpisodeCounts
from muxrl.servers.episodes.feed import Feed
from muxrl.servers.episodes.store import EpisodeStore
from muxrl.servers.training.callbacks import CallbackFailed, Callbacks
from muxrl.servers.training.policies import SAVE_TIMEOUT_S, Record, ServerProblem
from muxrl.servers.training.thread import Learning, LearningThread, PolicyLag

logger = logging.getLogger(__name__)


def feed_of(plan: ServerPlan) -> Feed:
    """Returns the feed of a server that learns, whose gate is as its plan says."""
    return Feed(0 if plan.while_learning == "wait" else max(1, plan.max_policy_lag))


class SavedPolicies(ABC):
    """See `muxrl.servers.training.policies.Policies`; a subclass has what learns and acts.

    The constructor of a subclass ends with `_begin`.

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
    _entry: Any
    """The algorithm."""

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
        self.num_refused_checkpoints = 0
        self.checkpoint_problem = ""
        """Why the last one was not written; "" if it was."""
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
    def policy_lag(self) -> PolicyLag:
        return self._learning.policy_lag

    def start(self) -> None:
        self.thread.start()

    def finish(self, timeout_s: float) -> bool:
        has_ended = self.thread.stop(timeout_s)
        self._normalization.observing.freeze()  # what acts from now on does not change any more
        return has_ended

    def drain_records(self) -> list[Record]:
        return self.thread.drain_records()

    def save(self, path: Path, timeout_s: float = SAVE_TIMEOUT_S) -> Path | None:
        try:
            self.thread.between_updates(functools.partial(self._write, path), timeout_s)
        except Exception as error:
            self.num_refused_checkpoints += 1
            self.checkpoint_problem = str(error)
            raise
        self.checkpoint_problem = ""
        return path

    # --- resuming -----------------------------------------------------------------------

    def _begin(self) -> None:
        """Begins with the weights that the plan names, or continues from its checkpoint.

        Raises:
            ServerProblem: there is no such checkpoint, it is broken, or it is of another server.
        """
        plan = self._plan
        if plan.initialize_from and not plan.resume_from:
            self._initialize()
        if plan.keeps_untrained:  # a checkpoint brings those of its run's beginning
            self.acting.keep_untrained()
        if plan.resume_from:
            with raised_by(plan, "go on from", plan.resume_from):
                state = self._restore(Checkpoint.open(Path(plan.resume_from)))
                self.thread.set_state(state["trainer"])
                self._set_serving_state(state)
            logger.info("server %r goes on from %s", plan.server_id, plan.resume_from)

    @abstractmethod
    def _initialize(self) -> None:
        """Begins with the weights of `plan.initialize_from`."""

    @abstractmethod
    def _restore(self, checkpoint: Checkpoint) -> State:
        """Continues with what learns and what it has learned; returns the checkpoint's state."""

    def _set_serving_state(self, state: Mapping[str, Any]) -> None:
        """Continues with what `_get_serving_state` returned; to be called last, since what is built
        and loaded draws from the generators."""
        self.store.restore(EpisodeCounts(**state["counts"]), unpack_chunks(state["pending"]))
        self.store.warnings.restore(ServerWarning(**one) for one in state["warnings"])
        for batch in state["batches"]:
            self.feed.put(unpack_chunks(batch))
        self.acting.set_random_state(state["acting"])
        self._normalization.set_state(state["normalization"])
        if state["untrained"] is not None and self._plan.keeps_untrained:
            self.acting.untrained = state["untrained"]  # else of the same seed, as it was built
        set_random_state(state["random"])

    # --- saving -------------------------------------------------------------------------

    @abstractmethod
    def _write(self, path: Path) -> None:
        """Writes a checkpoint by `_save`; no update is under way."""

    def _save(
        self, path: Path, about: Mapping[str, Any], state: Mapping[str, Any], **files: Any
    ) -> None:
        """Writes a checkpoint.

        Args:
            path: its folder.
            about: what its note says, besides what that of every server that learns does.
            state: what a server needs to continue, likewise.
            files: see `save_checkpoint`.
        """
        trainer = self.thread.get_state()
        counts = {name: trainer[name] for name in ("env_steps", "iteration")}
        save_checkpoint(
            self._plan,
            path,
            {**counts, "weights_seq_no": self.acting.weights_seq_no, **about},
            {**self._get_serving_state(), "trainer": trainer, **state},
            defaults=self._entry.settings(),
            **files,
        )
        logger.info("checkpoint in %s", path)

    def _get_serving_state(self) -> State:
        """Returns what a server has counted and not learned yet, and where its generators are."""

        def serving() -> State:
            return {
                "counts": dataclasses.asdict(self.store.counts),
                "warnings": [structs.asdict(one) for one in self.store.warnings.found],
                "pending": self.store.pending,
                "batches": self.feed.unlearned,
                "acting": self.acting.get_random_state(),
                "normalization": self._normalization.get_state(),
                "untrained": self.acting.untrained,
                "random": get_random_state(),
            }

        state = self.feed.on_serving_thread(serving)
        state["pending"] = pack_chunks(state["pending"])
        state["batches"] = [pack_chunks(batch) for batch in state["batches"]]
        return state
