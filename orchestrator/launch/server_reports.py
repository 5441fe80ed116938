"""The newest reports of a run's servers: their states, latencies and iterations."""

from __future__ import annotations

from typing import Any

from msgspec import convert
from msgspec.structs import replace

from muxrl.orchestrator.config import Experiment
from muxrl.orchestrator.launch.progress import ServerSnapshot
from muxrl.orchestrator.launch.tally import LatencyRecords, Tally
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.rows import IterationRow, ServerState
from muxrl.orchestrator.storage.json_files import finite
from muxrl.orchestrator.supervise.servers import Server, Servers
from muxrl.protocol.run_messages import RunReport

_UNKNOWN = ServerState()


class ServerReports:
    """The reports of all servers of a run.

    Args:
        experiment: the resolved experiment.
        metrics: writes each record of a server.
        tally: the run's counts.
    """

    def __init__(self, experiment: Experiment, metrics: MetricsWriter, tally: Tally) -> None:
        self._experiment = experiment
        self._metrics = metrics
        self._tally = tally
        self._states: dict[str, ServerState] = {}
        self._iterations: dict[str, IterationRow] = {}  # by server id: the newest iteration
        self._latencies = LatencyRecords()

    def receive(self, server_id: str, report: RunReport) -> None:
        """Receives a report, and writes its records."""
        self._tally.cpu.of[server_id] = report.cpu_s
        seconds: dict[str, Any] = {name: round(s, 3) for name, s in report.activity.items()}
        self._states[server_id] = ServerState(
            **seconds,
            num_refused=report.status.num_refused,
            num_env_steps=report.status.num_env_steps,
            num_logged_actions=report.status.num_logged_actions,
            weights_seq_no=report.status.weights_seq_no,
        )
        self._latencies.receive(server_id, report.latencies)
        for record in report.records:
            if self._experiment.servers[server_id].shadow:  # another server acted
                record = {**record, "episode_return_mean": None}
            self._metrics.server(server_id, record)
            self._iterations[server_id] = convert(finite(record), IterationRow)

    def cut_back(self, server_id: str, num_bytes: int) -> None:
        """Forgets what a lost server did after a checkpoint, where its records had `num_bytes`."""
        self._metrics.cut_back_server(server_id, num_bytes)
        self._latencies.forget(server_id)

    def states(self, servers: Servers) -> dict[str, ServerState]:
        """Returns each server's state for a row; servers that are being started again are lost."""
        found = {}
        for s, server in servers.of.items():
            state = ServerState(is_lost=True)
            if server.is_up.is_set():
                state = replace(self._states.get(s, _UNKNOWN), **self._latencies.record(s))
            found[s] = replace(state, lost_s=round(server.lost_s, 3))
        return found

    def not_updated(self) -> set[str]:
        """Returns the servers that learn and have made no update yet."""
        learning = self._experiment.learning
        return {s for s in learning if not self._states.get(s, _UNKNOWN).weights_seq_no}

    def snapshot(self, server: Server) -> ServerSnapshot:
        """Returns the present state of a server, as it is shown."""
        server_id, algorithm, status = server.name, server.plan.shown_algorithm, server.status
        learns = server_id not in self._experiment.fixed_servers
        if status is None:
            return ServerSnapshot(server_id, algorithm, weights_seq_no=0 if learns else None)
        iteration = self._iterations.get(server_id)
        return ServerSnapshot(
            server_id,
            algorithm,
            status.phase if server.is_up.is_set() else "restarting",
            status.is_waiting_for_learner,
            status.num_env_steps,
            self._tally.server_rate(server_id, status.num_env_steps),
            None if server.plan.shadow else status.episode_return_mean,
            status.weights_seq_no if learns else None,
            iteration.policy_lag_mean if iteration else None,
            iteration.loss if iteration else None,
        )
