"""What a run asks of a server besides its episodes: to report, save, finish or abort.

`muxrl.protocol.run_messages` has the same as requests, for a server that the run reaches over the
network only.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from muxrl.protocol.errors import NotServing, ValueMismatch
from muxrl.protocol.run_messages import (
    Aborting,
    AbortRequest,
    FinishRequest,
    ReportRequest,
    RunReport,
    SavedPart,
    SaveRequest,
)
from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE
from muxrl.servers.server import PolicyServer
from muxrl.servers.training.policies import ServerProblem, StillLearning


class RunService:
    """Answers a run for one server; its methods may be called from any threads at the same time.

    Args:
        server: the server.
    """

    def __init__(self, server: PolicyServer) -> None:
        self._server = server
        self._cpu_before_s = 0.0
        self._records: list[dict[str, Any]] = []
        """Records that were reported, until a later call says that they were taken in."""
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Counts processor time from now on."""
        self._cpu_before_s = time.process_time()

    def report(self, taken: int = 0) -> RunReport:
        """Returns the server's status, and its training records after iteration `taken`.

        Records are returned again until `taken` says that they were taken in, since an answer may
        get lost when the asking process is interrupted.
        """
        cpu_s = time.process_time() - self._cpu_before_s
        with self._lock:
            self._records = [r for r in self._records if r["iteration"] > taken]
            self._records += self._server.policies.drain_records()
            records = self._records.copy()
        activity = asdict(self._server.policies.feed.activity)
        latencies = self._server.latencies()
        return RunReport(self._server.status(), records, cpu_s, activity, latencies)

    def finish(self, timeout_s: float, taken: int = 0) -> RunReport:
        """Ends learning; the server continues acting with its last weights. Returns a `report`.

        Raises:
            StillLearning: the current update takes longer than `timeout_s`.
        """
        self._server.finish_training(timeout_s)
        return self.report(taken)

    def save(self, path: Path, timeout_s: float, taken: int = 0) -> SavedPart:
        """Writes a checkpoint between two updates, if there is anything to save.

        Args:
            path: folder of the checkpoint.
            timeout_s: how long to wait for the end of an update.
            taken: see `report`.

        Returns:
            The checkpoint's iteration, and a report without records of later iterations.

        Raises:
            StillLearning: the current update takes longer than `timeout_s`.
            ServerProblem: training has failed, so that the weights are not worth saving.
            OSError: the checkpoint cannot be written.
        """
        iteration = 0
        if self._server.policies.save(path, timeout_s) is not None:
            about = json.loads((path / ABOUT_FILE).read_text(encoding="utf-8"))
            iteration = about.get("iteration", 0)
        report = self.report(taken)
        report.records = [r for r in report.records if r["iteration"] <= iteration]
        return SavedPart(iteration, report)

    # --- the same as requests -----------------------------------------------------------

    def requests(self) -> dict[str, Callable[[Any], msgspec.Struct]]:
        """Returns the methods that answer a run's requests; see `Front.run_requests`."""
        return {
            "report": self._report,
            "save": self._save,
            "finish": self._finish,
            "abort": self._abort,
        }

    def _report(self, asked: ReportRequest) -> RunReport:
        return self.report(asked.taken)

    def _save(self, asked: SaveRequest) -> SavedPart:
        path = Path(asked.path)
        if not path.is_absolute() or "\0" in asked.path:
            raise ValueMismatch(
                f"a checkpoint's folder needs an absolute path, not {asked.path!r}: a run and its "
                "servers may have different working directories"
            )
        try:
            return self.save(path, asked.timeout_s, asked.taken)
        except (StillLearning, ServerProblem, OSError) as error:
            raise NotServing(str(error)) from None

    def _finish(self, asked: FinishRequest) -> RunReport:
        try:
            return self.finish(asked.timeout_s, asked.taken)
        except StillLearning as error:
            raise NotServing(str(error)) from None

    def _abort(self, asked: AbortRequest) -> Aborting:
        self._server.abort_episodes(asked.prefix)
        return Aborting()
