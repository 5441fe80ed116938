"""The policies of a server, as `PolicyServer` sees them, whether they learn or not.

`muxrl.servers.trainers` has those that learn, `muxrl.servers.fixed_policies` the others.
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
"""For how long a checkpoint waits for the end of an update; most take less than a second."""


class ServerProblem(RuntimeError):
    """The server cannot start, or what it has learned is not worth saving; the message says why."""


class LearnerDiverged(RuntimeError):
    """Too many updates in a row could not be applied; the message says of which policy."""


class StillLearning(RuntimeError):
    """An update has not ended in time; the message says of which server."""


class Policies(Protocol):
    """The policies of one server, and the episodes that they play."""

    store: EpisodeStore
    feed: Feed
    """Its gate holds training steps."""

    @property
    def acting(self) -> Acting:
        """Chooses the actions."""

    @property
    def iteration(self) -> int:
        """Training iterations so far."""

    @property
    def policy_lag(self) -> tuple[float, int] | None:
        """Mean and highest lag of the last batch, in versions; None where nothing is learned."""

    def start(self) -> None:
        """Starts to learn."""

    def finish(self, timeout_s: float) -> bool:
        """Ends learning, not acting; returns whether it ended in time."""

    def weights(self) -> bytes:
        """Returns a `PolicyWeights` in msgpack, for clients that act by themselves. Called on the
        event loop."""

    def drain_records(self) -> list[Record]:
        """Returns the training records since the last call."""

    def save(self, path: Path, timeout_s: float = SAVE_TIMEOUT_S) -> Path | None:
        """Writes a checkpoint, between two updates; None: nothing to save.

        Args:
            path: its folder, which is replaced if it is there.
            timeout_s: for how long to wait for the end of an update. Writing is not counted.

        Raises:
            StillLearning: an update takes longer than that.
            ServerProblem: weights or an optimizer's state are not finite.
            OSError: it cannot be written.
        """
