"""The learning thread: trains, records each iteration, and runs others' work in between."""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from muxrl.servers.config import ServerPlan
from muxrl.servers.episodes.counts import EpisodeCounts
from muxrl.servers.episodes.feed import Feed, FeedClosed
from muxrl.servers.episodes.trajectories import Chunk
from muxrl.servers.training.callbacks import Callbacks, Update
from muxrl.servers.training.policies import LearnerDiverged, Record, StillLearning

logger = logging.getLogger(__name__)

TOTAL_LOSS = "total_loss"
"""RLlib's name for a policy's loss."""
LOSS = "loss"
"""Trainers' name for a policy's loss."""

_MAX_RECORDS = 10_000
"""Most records to keep for `drain_records`, the newest: ``muxrl serve`` never reads them."""

_THREAD_CHECK_S = 0.2
"""How often a checkpoint that waits for the learning thread checks whether that has ended."""


class PolicyLag(NamedTuple):
    """By how many versions of the weights the last batch's actions were behind."""

    mean: float = 0.0
    max: int = 0

    @classmethod
    def of(cls, chunks: Sequence[Chunk], weights_seq_no: int) -> PolicyLag:
        """Returns the lag of a batch, given the version of the weights in use."""
        versions = [version for chunk in chunks for version in chunk.weights_seq_nos]
        behind = weights_seq_no * len(versions) - sum(versions)
        return cls(behind / len(versions), int(weights_seq_no - min(versions)))


class Learning(Protocol):
    """What the learning thread trains."""

    acting: Any
    """Acts with what is learned. It has the version of its weights, the number of env steps learned
    from, and the trainers by policy, ``learners``."""

    @property
    def policy_lag(self) -> PolicyLag:
        """The lag of the last batch."""

    def train(self) -> Mapping[str, Mapping[str, float]]:
        """Does one training iteration: takes batches from the feed, and updates.

        Returns:
            Metrics by policy and name, with the policy's loss, if any, as `TOTAL_LOSS` or `LOSS`.

        Raises:
            FeedClosed: the server is stopping.
            LearnerDiverged: too many updates in a row were skipped.
        """


def limit_torch_threads(num: int) -> None:
    """Limits torch's threads, if torch is used; torch keeps the number for each thread."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(num)


class LearningThread:
    """Trains in a separate thread until it is stopped.

    Args:
        learning: what the thread trains.
        plan: of the server.
        feed: closed by `stop`.
        counts: of the episodes served, for the records.
        on_failure: called in the learning thread with a sentence if training raises or the
            learner has diverged.
        callbacks: receive each iteration; their figures are recorded like those of a policy named
            "callbacks".
    """

    def __init__(
        self,
        learning: Learning,
        plan: ServerPlan,
        feed: Feed,
        counts: EpisodeCounts,
        *,
        on_failure: Callable[[str], None],
        callbacks: Callbacks | None = None,
    ) -> None:
        self.iteration = 0
        self._learning = learning
        self._feed = feed
        self._counts = counts
        self._plan = plan
        self._on_failure = on_failure
        self._callbacks = callbacks
        self._records: deque[Record] = deque(maxlen=_MAX_RECORDS)
        self._is_working = threading.Lock()
        self._started_at: float | None = None
        self._time_before_s = 0.0
        # Not a daemon: a daemon thread inside torch can abort the interpreter at its exit.
        self._thread = threading.Thread(target=self._run, name="trainer", daemon=False)

    @property
    def _time_s(self) -> float:
        """Seconds of learning, including those before a resume."""
        now = time.monotonic()
        return self._time_before_s + now - (now if self._started_at is None else self._started_at)

    def start(self) -> None:
        """Starts the thread."""
        self._started_at = time.monotonic()
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Ends the thread after its current update; returns whether it ended in time."""
        self._feed.close()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def drain_records(self) -> list[Record]:
        """Returns the records of iterations since the last call, at most the last 10,000."""
        return [self._records.popleft() for _ in range(len(self._records))]

    def between_updates(self, work: Callable[[], None], timeout_s: float) -> None:
        """Runs `work` before the thread takes its next batch, or when the thread has ended.

        Args:
            work: its exceptions are raised here, and learning continues.
            timeout_s: how long to wait for the end of an update; `work` does not count.

        Raises:
            StillLearning: the update takes longer than `timeout_s`.
        """
        working: Future[None] = Future()
        self._feed.ask(functools.partial(self._work, work, working))
        deadline = time.monotonic() + timeout_s
        while not working.done():
            if not self._thread.is_alive():  # before it has begun, or since it has ended
                self._feed.run_tasks()
            left_s = deadline - time.monotonic()
            concurrent.futures.wait([working], max(0.0, min(left_s, _THREAD_CHECK_S)))
            # Work that has begun cannot be cancelled, so it is waited for.
            if left_s <= 0.0 and working.cancel():
                raise StillLearning(
                    f"server {self._plan.server_id!r} is still in an update after {timeout_s:g} s"
                )
        working.result()

    def _work(self, work: Callable[[], None], working: Future[None]) -> None:
        with self._is_working:
            if not working.set_running_or_notify_cancel():
                return
            try:
                work()
                working.set_result(None)
            except Exception as error:  # noqa: BLE001, raised again in the waiting thread
                working.set_exception(error)

    # --- state --------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Returns the progress of learning."""
        return {
            "iteration": self.iteration,
            "env_steps": self._learning.acting.num_env_steps_sampled,
            "time_s": self._time_s,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from that state, with iterations and seconds of all runs; before `start`."""
        self.iteration = state["iteration"]
        self._time_before_s = state["time_s"]

    def _run(self) -> None:
        limit_torch_threads(self._plan.resources.num_torch_threads)
        try:
            while True:
                metrics = self._learning.train()
                self.iteration += 1
                record = self._record(metrics)  # before simulations continue
                self._feed.finish_learning()
                if self._callbacks is not None:
                    record["learner"]["callbacks"] = self._called_back(self._callbacks, metrics)
                self._records.append(record)
        except FeedClosed:
            logger.info("training stopped after %d iterations", self.iteration)
        except LearnerDiverged as error:
            logger.error("%s", error)
            self._on_failure(f"training failed: {error}")
        except Exception as error:  # the top of the thread: nothing else would report it
            logger.exception("training failed in iteration %d", self.iteration + 1)
            self._on_failure(f"training failed: {type(error).__name__}: {error}")
        finally:
            self._feed.discard()
            self._feed.run_tasks()

    def _called_back(
        self, callbacks: Callbacks, metrics: Mapping[str, Mapping[str, float]]
    ) -> dict[str, float]:
        """Passes an iteration to the callbacks; returns their figures."""
        acting = self._learning.acting
        update = Update(self.iteration, acting.num_env_steps_sampled, metrics, acting.learners)
        return _scalars(callbacks.report(update))

    def _record(self, metrics: Mapping[str, Mapping[str, float]]) -> Record:
        time_s, lag = self._time_s, self._learning.policy_lag
        found = [m.get(TOTAL_LOSS, m.get(LOSS)) for m in metrics.values()]
        losses = [loss for loss in found if loss is not None]
        return {
            "time_s": time_s,
            "env_steps": self._counts.num_env_steps,
            "agent_steps": self._counts.num_agent_steps,
            "episodes": self._counts.num_episodes,
            "iteration": self.iteration,
            "env_steps_per_s": self._counts.num_env_steps / max(time_s, 1e-9),
            "episode_return_mean": self._counts.episode_return_mean,
            "weights_seq_no": self._learning.acting.weights_seq_no,
            "policy_lag_mean": lag.mean,
            "policy_lag_max": lag.max,
            "loss": sum(losses) if losses else None,
            "learner": {policy_id: _scalars(values) for policy_id, values in metrics.items()},
        }


def _scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns the entries that are finite numbers."""
    scalars = {}
    for name, value in values.items():
        try:
            number = float(value)
        except (TypeError, ValueError):
            continue
        if math.isfinite(number):
            scalars[name] = number
    return scalars
