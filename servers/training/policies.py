"""The policies of a server, learning or not, in the form that `PolicyServer` needs.

`muxrl.servers.trainers` has policies that learn, `muxrl.servers.fixed_policies` the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from muxrl.servers.acting import Acting
from muxrl.servers.episodes.feed import Feed
from muxrl.servers.episodes.store import EpisodeStore

Record = dict[str, Any]
"""Metrics of one training iteration; see `muxrl.orchestrator.records.metrics`."""


SAVE_TIMEOUT_S = 30.0
"""How long a checkpoint waits for the end of an update; most updates take less than a second."""


class ServerProblem(RuntimeError):
    """The server cannot start, or its weights are not worth saving; the message says why."""


class LearnerDiverged(RuntimeError):
    """Too many updates in a row could not be applied; the message names the policy."""


class StillLearning(RuntimeError):
    """An update has not ended in time; the message names the server."""


class Policies(Protocol):
    """The policies of one server, and the episodes that they play."""

    store: EpisodeStore
    feed: Feed
    """The feed, whose gate holds training steps while simulations have to wait for the learner."""

    @property
    def acting(self) -> Acting:
        """Chooses the actions."""

    @property
    def iteration(self) -> int:
        """Training iterations so far."""

    @property
    def policy_lag(self) -> tuple[float, int] | None:
        """Mean and highest lag of the last batch, in versions; None if nothing is learned."""

    def start(self) -> None:
        """Begins to learn."""

    def finish(self, timeout_s: float) -> bool:
        """Ends learning, not acting; returns whether it ended in time."""

    def weights(self) -> bytes:
        """Returns a `PolicyWeights` in msgpack, for clients that act by themselves; called on the
        event loop."""

    def drain_records(self) -> list[Record]:
        """Returns the training records since the last call."""

    def save(self, path: Path, timeout_s: float = SAVE_TIMEOUT_S) -> Path | None:
        """Writes a checkpoint between two updates; returns its path; None: nothing to save.

        Args:
            path: folder of the checkpoint, which is replaced if it exists.
            timeout_s: how long to wait for the end of an update; writing does not count.

        Raises:
            StillLearning: the update takes longer than `timeout_s`.
            ServerProblem: weights or an optimizer's state are not finite.
            OSError: the checkpoint cannot be written.
        """
