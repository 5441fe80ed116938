"""A run between start and stop: its servers and simulations, watched and evaluated.

Everything runs in Ray actors; this process holds the run directory and watches. A `Run` finds Ray
running, touches no signal, prints nothing, and is asked for one round of watching at a time, so
that a sweep can hold one in each of its trials. `whole_run` puts a Ray and a terminal around it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from muxrl.orchestrator.config import Experiment
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.records.run_status import StatusFile
from muxrl.orchestrator.runs.evaluation import Evaluations
from muxrl.orchestrator.runs.placement import has_evaluations
from muxrl.orchestrator.runs.processes import ServerReport
from muxrl.orchestrator.runs.progress import ServerSnapshot, Snapshot
from muxrl.orchestrator.runs.server_actors import ServerActors
from muxrl.orchestrator.runs.simulation_actors import SimulationActors
from muxrl.orchestrator.runs.stop_conditions import StopConditions
from muxrl.orchestrator.runs.tally import Tally
from muxrl.protocol.messages import Status

logger = logging.getLogger(__name__)


class Run:
    """One run, on the Ray that this process is connected to.

    Call `start`, `begin`, `watch` until it returns True, `finish`, and `stop` in any case.

    Args:
        experiment: resolved.
        folder: the run's directory.
        metrics: writes there.
    """

    def __init__(
        self, experiment: Experiment, folder: RunDirectory, metrics: MetricsWriter
    ) -> None:
        self.experiment = experiment
        self.config = experiment.config
        self.tally = Tally()
        self.status = StatusFile(folder)
        self.has_started = False
        """Whether all processes have come up."""
        self._folder = folder
        self._metrics = metrics
        self._servers = ServerActors(experiment, folder, self._take_records)
        self._simulations = SimulationActors(experiment.config, folder, self.tally.add)
        self._evaluations: Evaluations | None = None
        self._stop_conditions = StopConditions(self.config.stop, experiment.fixed_servers)
        self._saved_at_s = 0.0

    # --- start --------------------------------------------------------------------------

    def start(self, scheduling: Any = None) -> None:
        """Starts the servers, and once all are ready the simulations.

        Args:
            scheduling: Ray's scheduling strategy of all actors; None: Ray's own choice, which
                inside of a placement group is that group.

        Raises:
            RunFailed: one of them did not come up.
        """
        self._servers.start(scheduling)
        if not self.experiment.is_external:
            self._simulations.start(self._servers.addresses, scheduling)
            if has_evaluations(self.config):
                self._evaluations = Evaluations(
                    self.experiment,
                    self._servers.addresses,
                    self._folder,
                    self._metrics,
                    scheduling,
                )
        self.has_started = True

    def begin(self) -> None:
        """Evaluates the untrained policies, if evaluations are scheduled; then lets all play.

        Raises:
            RunFailed: a process died.
        """
        if self._evaluations is not None and self.config.evaluation.interval_env_steps:
            self.status.enter("evaluating", 0)
            self._evaluations.begin(0, 0.0)
            self._evaluations.wait()
        self.status.enter("running", 0)
        self._simulations.play()
        self.tally.begin()

    # --- watch --------------------------------------------------------------------------

    def watch(self) -> bool:
        """Looks after the run for `metrics_interval_s`, and writes metrics.

        Returns:
            Whether a stop condition holds now.

        Raises:
            RunFailed: a process died, a simulation raised, or training failed.
        """
        self._simulations.watch(self.config.metrics_interval_s, self._servers.find_death)
        self._collect_reports()
        if self._evaluations is not None:
            self._evaluations.collect()
            self._evaluations.begin_if_due(self.tally.env_steps, self.tally.time_s)
        self._metrics.joint(self.tally.record())
        self._save_if_due()
        return self._stop_conditions.reached(self.tally, self.statuses)

    def _collect_reports(self) -> None:
        """Asks every process for its report, all at once."""
        of_servers, of_simulations = self._servers.ask(), self._simulations.ask()
        self._servers.collect(of_servers)
        self._simulations.collect(of_simulations)
        if self.experiment.is_external:
            self.tally.set_external(self.statuses)
        self.tally.tick()

    def _take_records(self, server_id: str, report: ServerReport) -> None:
        self.tally.cpu_s_of[server_id] = report.cpu_s
        for record in report.records:
            self._metrics.server(server_id, record)
            self.tally.last_records[server_id] = record

    def _save_if_due(self) -> None:
        interval_s = self.config.checkpoint.interval_s
        if interval_s is not None and self.tally.time_s - self._saved_at_s >= interval_s:
            self._saved_at_s = self.tally.time_s
            self._servers.save_soon(self.tally.env_steps)

    # --- what it says of itself ---------------------------------------------------------

    @property
    def statuses(self) -> Mapping[str, Status]:
        """The newest status of each server that has reported."""
        return self._servers.statuses

    @property
    def evaluated(self) -> dict[str, Any] | None:
        """The newest evaluation with all agents as learned; see `records.metrics`."""
        return self._evaluations.latest if self._evaluations is not None else None

    @property
    def has_final_evaluation(self) -> bool:
        """Whether `finish` evaluates."""
        return self._evaluations is not None and self.config.evaluation.final_num_episodes > 0

    @property
    def addresses_text(self) -> str:
        """Which server listens where, for people."""
        return ", ".join(
            f"{s} ({self.experiment.servers[s].algorithm}) on {a.address}"
            for s, a in self._servers.addresses.items()
        )

    def snapshot(self) -> Snapshot:
        """Returns how the run stands; of servers that have not reported, what is known before."""
        tally = self.tally
        is_evaluating = self._evaluations is not None and self._evaluations.is_running
        return Snapshot(
            tally.time_s,
            tally.env_steps,
            tally.env_steps_per_s,
            tally.num_episodes,
            self._stop_conditions.time_left_s(tally, self.statuses),
            self._stop_conditions.text,
            [self._server_snapshot(server_id) for server_id in self.experiment.servers],
            "evaluating" if is_evaluating else "",
        )

    def _server_snapshot(self, server_id: str) -> ServerSnapshot:
        algorithm = self.experiment.servers[server_id].algorithm
        learns = server_id not in self.experiment.fixed_servers
        status = self.statuses.get(server_id)
        if status is None:
            return ServerSnapshot(server_id, algorithm, weights_seq_no=0 if learns else None)
        record = self.tally.last_records.get(server_id, {})
        return ServerSnapshot(
            server_id,
            algorithm,
            status.phase,
            status.is_waiting_for_learner,
            status.num_env_steps,
            self.tally.server_rate(server_id, status.num_env_steps),
            status.episode_return_mean,
            status.weights_seq_no if learns else None,
            record.get("policy_lag_mean"),
            record.get("loss"),
        )

    # --- end ----------------------------------------------------------------------------

    def finish(self) -> None:
        """Ends playing and learning, and evaluates what was learned.

        Raises:
            RunFailed: a process died.
        """
        self._simulations.stop()
        self._servers.finish_training()
        if self._evaluations is not None and self.has_final_evaluation:
            self.status.enter("evaluating", self.tally.env_steps)
            self._evaluations.wait()
            self._evaluations.begin(self.tally.env_steps, self.tally.time_s, is_final=True)
            self._evaluations.wait()

    def stop(self) -> list[str]:
        """Ends every process that is left; saves checkpoints; never raises.

        Returns:
            What could not be saved, and why, in a sentence each.
        """
        import ray

        if not ray.is_initialized():
            return []
        unsaved: list[str] = []
        with contextlib.suppress(Exception):
            self._simulations.stop()
        try:
            if self.has_started:
                unsaved = self._servers.stop(should_save=self.config.checkpoint.at_end)
            else:  # nothing to save, and one that is still being made does not answer
                self._servers.kill()
        except Exception as error:  # shutdown must run to completion
            logger.exception("stopping the servers")
            unsaved.append(f"stopping the servers: {type(error).__name__}: {error}")
        if self._evaluations is not None:
            self._evaluations.stop()
        return unsaved
