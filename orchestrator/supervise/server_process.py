"""The process of one policy server, as a Ray actor.

The class is plain; `start_actor` makes an actor of it. Heavy imports happen inside.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from muxrl.orchestrator.storage.checkpoints import SavedServer, hash_files
from muxrl.orchestrator.supervise.process import (
    ProcessId,
    ProcessReport,
    reachable,
    set_up,
    settle,
)
from muxrl.protocol.messages import Status
from muxrl.servers.config import ServerPlan

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerReport(ProcessReport):
    """A server's status, and what it has trained."""

    status: Status
    records: list[dict[str, Any]]
    """Training records that nobody has taken in yet."""
    cpu_s: float = 0.0
    """Processor seconds since the server was ready."""
    activity: Mapping[str, float] = field(default_factory=dict)
    """What the process has spent its time on; see `muxrl.servers.episodes.feed.Activity`."""
    latencies: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """How long it took; see `muxrl.servers.server.PolicyServer.latencies`."""


class ServerProcess:
    """A process with one policy server.

    Args:
        plan: the server.
        log_path: the process's log file.
    """

    def __init__(self, plan: ServerPlan, log_path: Path) -> None:
        set_up(log_path)
        from muxrl.servers.server import PolicyServer

        self._server = PolicyServer(plan)
        self._cpu_before_s = 0.0
        self._records: list[dict[str, Any]] = []
        """What has been reported, until a later call says that it was taken in."""
        self._lock = threading.Lock()  # of reports, which may be asked for at the same time

    def start(self) -> tuple[str, ProcessId]:
        """Serves and learns from now on; returns "host:port", and who does."""
        address = reachable(self._server.start())
        settle()
        self._cpu_before_s = time.process_time()
        return address, ProcessId.of_this()

    def status(self) -> Status:
        """Returns the server's status."""
        return self._server.status()

    def abort_episodes(self, prefix: str) -> None:
        """Closes the episodes whose ids begin so as truncated."""
        self._server.abort_episodes(prefix)

    def report(self, taken: int = 0) -> ServerReport:
        """Returns the server's status, and its training records after iteration `taken`.

        They are returned again until `taken` says that they were taken in: an answer may get lost,
        since whoever asks for it may be interrupted.
        """
        cpu_s = time.process_time() - self._cpu_before_s
        with self._lock:
            self._records = [r for r in self._records if r["iteration"] > taken]
            self._records += self._server.drain_records()
            records = self._records.copy()
        return ServerReport(
            self._server.status(),
            records,
            cpu_s,
            asdict(self._server.policies.feed.activity),
            self._server.latencies(),
        )

    def finish_training(self, timeout_s: float, taken: int = 0) -> ServerReport:
        """Ends learning; the server goes on acting with its last weights. Returns a `report`.

        Raises:
            StillLearning: the update under way takes longer than that.
        """
        self._server.finish_training(timeout_s)
        return self.report(taken)

    def save(
        self, path: Path, timeout_s: float, taken: int = 0
    ) -> tuple[SavedServer, ServerReport]:
        """Writes a checkpoint between two updates.

        Args:
            path: its folder.
            timeout_s: for how long to wait for the end of an update.
            taken: see `report`.

        Returns:
            What was written, and a report as of that moment, without iterations after it.

        Raises:
            StillLearning: an update takes longer than that.
            OSError: it cannot be written.
        """
        saved = SavedServer(self._server.plan.algorithm)
        if self._server.policies.save(path, timeout_s) is not None:
            from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE

            about = json.loads((path / ABOUT_FILE).read_text(encoding="utf-8"))
            saved = SavedServer(saved.algorithm, about.get("iteration", 0), hash_files(path))
        report = self.report(taken)
        before = [r for r in report.records if r["iteration"] <= saved.iteration]
        return saved, replace(report, records=before)

    def stop(self) -> bool:
        """Ends serving and learning; returns whether all threads ended in time."""
        return self._server.stop()
