"""What acts on a server: the part behind the network, which may learn or not.

`servers.learned_policies` has the one that RLlib trains, `servers.fixed_policies` those that stay
as they are. `PolicyServer` is the same around both.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from muxrl.servers.episodes.episode import PendingStep
from muxrl.servers.episodes.store import EpisodeStore
from muxrl.servers.feed import Feed
from muxrl.servers.seats import SeatAction

Record = dict[str, Any]
"""Of one training iteration; see `muxrl.orchestrator.records.metrics`."""


class ServerProblem(RuntimeError):
    """The server cannot start; the sentence says why."""


class StillLearning(RuntimeError):
    """An update is going on that was to be over; the sentence says whose."""


class Acting(Protocol):
    """Whoever chooses the actions."""

    weights_seq_no: int
    """Version of the weights in use; 0 for ever where nothing is learnt."""

    def act(self, steps: Sequence[PendingStep]) -> tuple[list[list[SeatAction]], int]:
        """Chooses the actions of many steps; nothing of them is in force yet.

        Returns:
            For each step its actions, one for each of its requests; and the version of the weights
            that chose them.
        """


class Policies(Protocol):
    """The policies of one server, with the episodes that they play."""

    store: EpisodeStore
    feed: Feed
    """The gate in front of the acting."""

    @property
    def acting(self) -> Acting:
        """Chooses the actions."""

    @property
    def iteration(self) -> int:
        """Training iterations so far."""

    def start(self) -> None:
        """Begins to learn."""

    def finish(self, timeout_s: float) -> bool:
        """Ends learning and acts on; says whether that was done in time."""

    def close(self) -> None:
        """Gives back what is held; nothing acts any more."""

    def drain_records(self) -> list[Record]:
        """Returns the training records since the last call."""

    def save(self, path: Path) -> Path | None:
        """Writes a checkpoint of what has finished learning; None: there is nothing to save.

        Raises:
            StillLearning: it has not finished.
            OSError: it cannot be written.
        """

    def save_soon(self, path: Path) -> None:
        """Asks for a checkpoint after the training iteration under way."""
