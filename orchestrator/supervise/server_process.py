"""The process of one policy server; see `Worker`. Heavy imports happen in functions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from muxrl.orchestrator.storage.checkpoints import SavedServer
from muxrl.orchestrator.supervise.process import reachable, settle
from muxrl.orchestrator.supervise.working import in_own_thread
from muxrl.protocol.messages import Status
from muxrl.protocol.run_messages import UNTRAINED, RunReport
from muxrl.servers.checkpoints.live import LiveCheckpoint
from muxrl.servers.config import ServerPlan

COSTS = {
    "check": "'muxrl check' cannot check its settings",
    "begin": "it gets no settings from the config, and cannot resume from a checkpoint",
    "report": "its updates are missing in all tables and pictures",
    "save": "the run's checkpoints lack what it has learned",
    "finish": "it may go on learning during the evaluation at the end",
    "abort": "episodes of a lost simulation stay open until they expire",
    UNTRAINED: "it is not compared with its untrained policies",
}
"""The requests that a run may make of a server, and what it costs if one is not offered."""


class Started(NamedTuple):
    """What is known of a server once it listens."""

    address: str
    """"host:port"."""
    pid: int
    offers: frozenset[str] = frozenset(COSTS)
    """The requests of a run that the server answers."""


class ServerProcess:
    """A process with one policy server.

    Args:
        plan: what the server serves.
    """

    def __init__(self, plan: ServerPlan) -> None:
        from muxrl.servers.run_service import RunService
        from muxrl.servers.server import PolicyServer

        self._server = PolicyServer(plan)
        self._service = RunService(self._server)

    def start(self, *pool_arguments: tuple[Any, ...]) -> Started:
        """Starts serving and learning.

        Args:
            pool_arguments: for a pool: the arguments of each call of `sync` before it serves.
        """
        for one in pool_arguments:
            self.sync(*one)
        address = reachable(self._server.start())
        settle()
        self._service.begin()
        return Started(address, os.getpid())

    def live(self) -> LiveCheckpoint:
        """See `TrainerPolicies.live`."""
        policies: Any = self._server.policies
        live: LiveCheckpoint = policies.live()
        return live

    def sync(self, source: str, snapshots: Mapping[int, str], live: LiveCheckpoint | None) -> None:
        """See `PoolPolicies.sync`."""
        policies: Any = self._server.policies
        policies.sync(source, snapshots, live)

    def status(self) -> Status:
        """Returns the server's status."""
        return self._server.status()

    def abort_episodes(self, prefix: str) -> None:
        """Closes the episodes whose ids begin with `prefix` as truncated."""
        self._server.abort_episodes(prefix)

    def set_paused(self, is_paused: bool) -> None:
        """See `EpisodeStore.is_paused`."""
        self._server.set_paused(is_paused)

    def report(self, taken: int = 0) -> RunReport:
        """See `RunService.report`."""
        return self._service.report(taken)

    @in_own_thread
    def finish_training(self, timeout_s: float, taken: int = 0) -> RunReport:
        """See `RunService.finish`."""
        return self._service.finish(timeout_s, taken)

    @in_own_thread
    def save(self, path: Path, timeout_s: float, taken: int = 0) -> tuple[SavedServer, RunReport]:
        """Writes a checkpoint; see `RunService.save`.

        Returns:
            What was written, and a report as of that moment.
        """
        saved = self._service.save(path, timeout_s, taken)
        written = SavedServer.of(self._server.plan.algorithm, saved.iteration, path)
        return written, saved.report

    @in_own_thread
    def stop(self) -> bool:
        """Ends serving and learning; returns whether all threads ended in time."""
        return self._server.stop()
