"""The processes of a run, between start and stop: servers and simulations, watched and evaluated.

Everything runs in Ray actors; this process holds the run directory and watches. A `Run` finds Ray
running, touches no signal, prints nothing, and is asked for one round of watching at a time, so
that a sweep can hold one in each of its trials. `whole_run` puts a Ray and a terminal around it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path
from typing import Any

from muxrl.orchestrator.config import Experiment
from muxrl.orchestrator.config.seeds import derive_seed
from muxrl.orchestrator.runs.evaluation import Evaluations
from muxrl.orchestrator.runs.failures import RunFailed, answer_of, cause_of_death, death_of, failure
from muxrl.orchestrator.runs.local_ray import worker_environment
from muxrl.orchestrator.records.metrics import MetricsWriter
from muxrl.orchestrator.runs.placement import has_evaluations
from muxrl.orchestrator.runs.processes import (
    EvaluationProcess,
    ServerAddress,
    ServerProcess,
    ServerReport,
    SimulationProcess,
)
from muxrl.orchestrator.runs.progress import ServerSnapshot, Snapshot
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.runs.stop_conditions import StopConditions
from muxrl.orchestrator.runs.tally import Tally

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 120.0
_REPORT_TIMEOUT_S = 60.0
_UPDATE_TIMEOUT_S = 120.0
"""For the last update; clients wait as long for one."""
_STOP_TIMEOUT_S = 45.0
_DEATH_NOTICE_S = 3.0
"""How long a server's death may take to be known after a simulation has felt it."""


class Run:
    """The processes of one run, on the Ray that this process is connected to.

    Call `start`, `begin`, `watch` until it says so, `finish`, and `stop` in any case.

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
        self.has_started = False
        """Whether all its processes have come up."""
        self.tally = Tally()
        self._folder = folder
        self._metrics = metrics
        self._scheduling: Any = None
        self._servers: dict[str, Any] = {}
        self._simulations: dict[str, Any] = {}
        self._evaluator: Any = None
        self._addresses: dict[str, ServerAddress] = {}
        self._pids: dict[str, int] = {}
        self._playing: dict[Any, str] = {}
        self._reports: dict[str, ServerReport] = {}
        self._evaluations: Evaluations | None = None
        self._stop_conditions = StopConditions(self.config.stop, experiment.fixed_servers)
        self._saved_at_s = 0.0

    @property
    def stop_text(self) -> str:
        """What ends the run, for people."""
        return self._stop_conditions.text

    @property
    def where(self) -> str:
        """Which server listens where, for people."""
        return ", ".join(
            f"{s} ({self.experiment.servers[s].algorithm}) on {a.address}"
            for s, a in self._addresses.items()
        )

    @property
    def evaluated(self) -> dict[str, Any] | None:
        """The newest evaluation with all agents as learned; see `muxrl.orchestrator.records.metrics`."""
        return self._evaluations.latest if self._evaluations is not None else None

    @property
    def has_final_evaluation(self) -> bool:
        """Whether `finish` evaluates."""
        return self._evaluations is not None and self.config.evaluation.final_num_episodes > 0

    @property
    def time_left_s(self) -> float | None:
        """Until a stop condition holds at the present pace, None if nobody can tell."""
        return self._stop_conditions.time_left_s(self.tally, self.statuses())

    # --- start --------------------------------------------------------------------------

    def start(self, scheduling: Any = None) -> None:
        """Starts the servers, and once all are ready the simulations.

        Args:
            scheduling: Ray's scheduling strategy of all actors; None: Ray's own choice, which
                inside of a placement group is that group.

        Raises:
            RunFailed: one of them did not come up.
        """
        self._scheduling = scheduling
        self._start_servers()
        if not self.experiment.is_external:
            self._start_simulations()
        self.has_started = True

    def _start_servers(self) -> None:
        import ray

        environment = {"env_vars": worker_environment()}
        for server_id, plan in self.experiment.servers.items():
            actor = ray.remote(ServerProcess).options(
                num_cpus=plan.resources.num_cpus,
                num_gpus=plan.resources.num_gpus,
                max_concurrency=4,
                max_restarts=0,
                runtime_env=environment,
                scheduling_strategy=self._scheduling,
            )
            self._servers[server_id] = actor.remote(plan, self._log(server_id))
        starts = {actor.start.remote(): s for s, actor in self._servers.items()}
        for ref, server_id in starts.items():
            address, pid = self._get(ref, _START_TIMEOUT_S, f"server {server_id!r}", server_id)
            self._addresses[server_id] = ServerAddress(
                address, self.experiment.servers[server_id].token
            )
            self._pids[server_id] = pid
        self._folder.write_addresses({s: a.address for s, a in self._addresses.items()})

    def _start_simulations(self) -> None:
        import ray

        environment = {"env_vars": worker_environment()}
        simulation = self.config.simulation
        for i in range(simulation.num_processes):
            name = f"simulation-{i}"
            actor = ray.remote(SimulationProcess).options(
                num_cpus=simulation.num_cpus,
                max_concurrency=3,
                max_restarts=0,
                runtime_env=environment,
                scheduling_strategy=self._scheduling,
            )
            seed = derive_seed(self.config.seed, "simulation", str(i))
            self._simulations[name] = actor.remote(
                simulation, self._addresses, seed, self._log(name)
            )
        if not has_evaluations(self.config):
            return
        self._evaluator = (
            ray.remote(EvaluationProcess)
            .options(
                num_cpus=simulation.num_cpus,
                max_restarts=0,
                runtime_env=environment,
                scheduling_strategy=self._scheduling,
            )
            .remote(simulation, self._addresses, self._log("evaluation"))
        )
        can_sample = {
            server_id: plan.samples_actions
            for server_id, plan in self.experiment.servers.items()
            if server_id not in self.experiment.fixed_servers
        }
        self._evaluations = Evaluations(
            self.config.evaluation, can_sample, self._evaluator, self._metrics
        )

    def _log(self, name: str) -> Path:
        return (self._folder.logs / f"{name}.log").absolute()

    # --- supervise ----------------------------------------------------------------------

    def begin(self) -> None:
        """Evaluates the untrained policies, if evaluations are scheduled; then lets all play.

        Raises:
            RunFailed: a process died.
        """
        if self._evaluations is not None and self.config.evaluation.interval_env_steps:
            self._evaluations.begin(0, 0.0)
            self._evaluations.wait(self._check_evaluation)
        for name, actor in self._simulations.items():
            self._playing[actor.run.remote()] = name
        self.tally.begin()

    def watch(self) -> bool:
        """Looks after the run for `metrics_interval_s`, and writes metrics.

        Returns:
            Whether a stop condition holds now.

        Raises:
            RunFailed: a process died, a simulation raised, or training failed.
        """
        self._watch_simulations(self.config.metrics_interval_s)
        self._gather()
        if self._evaluations is not None:
            self._evaluations.collect(self._check_evaluation)
            self._evaluations.begin_if_due(self.tally.env_steps, self.tally.time_s)
        self._metrics.joint(self.tally.record())
        self._save_if_due()
        return self._stop_conditions.reached(self.tally, self.statuses())

    def rows(self) -> list[ServerSnapshot]:
        """Returns what there is to show of the servers before anything was asked."""
        return [
            ServerSnapshot(s, p.algorithm, weights_seq_no=self._version_of(s, 0))
            for s, p in self.experiment.servers.items()
        ]

    def _save_if_due(self) -> None:
        interval_s = self.config.checkpoint.interval_s
        if interval_s is None or self.tally.time_s - self._saved_at_s < interval_s:
            return
        self._saved_at_s = self.tally.time_s
        for server_id, actor in self._servers.items():
            folder = self._folder.checkpoints / server_id / f"{self.tally.env_steps}_env_steps"
            actor.save_soon.remote(folder.absolute())

    def _watch_simulations(self, interval_s: float) -> None:
        """Sleeps for an interval, or until a simulation gives up."""
        import ray

        if not self._playing:
            time.sleep(interval_s)
            return
        ended, _ = ray.wait(list(self._playing), timeout=interval_s)
        for ref in ended:
            name = self._playing.pop(ref)
            try:
                ray.get(ref)
            except Exception as error:  # any end of a simulation is the run's end
                raise self._simulation_failed(name, error) from error
            raise RunFailed(f"{name} ended by itself; its log: {self._log(name)}")

    def _simulation_failed(self, name: str, error: Exception) -> RunFailed:
        # Where a server died, simulations fail, too: the cause is told, not the consequence.
        deadline = time.monotonic() + _DEATH_NOTICE_S
        for server_id, actor in self._servers.items():
            left_s = max(0.1, deadline - time.monotonic())
            death = death_of(actor.status.remote(), left_s)
            if death is not None:
                return failure(self._server(server_id), death, self._log(server_id))
        return failure(name, error, self._log(name))

    def _gather(self) -> None:
        """Asks every process how it is, all at once."""
        server_refs = {s: actor.report.remote() for s, actor in self._servers.items()}
        simulation_refs = {n: actor.report.remote() for n, actor in self._simulations.items()}
        for server_id, ref in server_refs.items():
            report = self._get(ref, _REPORT_TIMEOUT_S, f"server {server_id!r}", server_id)
            self._take(server_id, report)
        for name, ref in simulation_refs.items():
            self.tally.add(name, self._get(ref, _REPORT_TIMEOUT_S, name, None))
        if self.experiment.is_external:
            self.tally.set_external(self.statuses())
        self.tally.tick()

    def _note(self, server_id: str, report: ServerReport) -> None:
        self._reports[server_id] = report
        self.tally.cpu_s_of[server_id] = report.cpu_s
        for record in report.records:
            self._metrics.server(server_id, record)
            self.tally.last_records[server_id] = record

    def _take(self, server_id: str, report: ServerReport) -> None:
        self._note(server_id, report)
        if report.status.problem:
            raise RunFailed(
                f"server {server_id!r}: {report.status.problem}; its log: {self._log(server_id)}"
            )

    def _check_evaluation(self, ref: Any) -> Any:
        return self._get(ref, None, "the evaluation", None, log="evaluation")

    def _get(
        self,
        ref: Any,
        timeout_s: float | None,
        who: str,
        server_id: str | None,
        log: str | None = None,
    ) -> Any:
        """Returns an actor's answer, or says who failed.

        Raises:
            RunFailed: it died, raised, or did not answer in time.
        """
        if server_id is not None and server_id in self._pids:
            who = self._server(server_id)
        return answer_of(ref, timeout_s, who, self._log(log or server_id or who))

    def _server(self, server_id: str) -> str:
        """A server that has come up, for messages."""
        algorithm = self.experiment.servers[server_id].algorithm
        return f"server {server_id!r} (pid {self._pids[server_id]}, {algorithm})"

    def _version_of(self, server_id: str, weights_seq_no: int) -> int | None:
        return None if server_id in self.experiment.fixed_servers else weights_seq_no

    def statuses(self) -> dict[str, Any]:
        """Returns what each server said of itself last."""
        return {server_id: report.status for server_id, report in self._reports.items()}

    def snapshot(self) -> Snapshot:
        """Returns how the run stands."""
        servers = []
        for server_id, plan in self.experiment.servers.items():
            status = self._reports[server_id].status
            record = self.tally.last_records.get(server_id, {})
            servers.append(
                ServerSnapshot(
                    server_id,
                    plan.algorithm,
                    self._addresses[server_id].address,
                    status.phase,
                    status.is_waiting_for_learner,
                    status.num_env_steps,
                    self.tally.pace(server_id, status.num_env_steps),
                    status.episode_return_mean,
                    self._version_of(server_id, status.weights_seq_no),
                    record.get("policy_lag_mean"),
                    record.get("loss"),
                )
            )
        tally = self.tally
        is_evaluating = self._evaluations is not None and self._evaluations.is_running
        return Snapshot(
            tally.time_s,
            tally.env_steps,
            tally.env_steps_per_s,
            tally.num_episodes,
            self.time_left_s,
            self._stop_conditions.text,
            servers,
            "evaluating" if is_evaluating else "",
        )

    # --- end ----------------------------------------------------------------------------

    def finish(self) -> None:
        """Ends playing and learning, and evaluates what was learned.

        Raises:
            RunFailed: a process died.
        """
        self.end_training()
        if self._evaluations is not None and self.has_final_evaluation:
            self._evaluations.wait(self._check_evaluation)
            self._evaluations.begin(self.tally.env_steps, self.tally.time_s, is_final=True)
            self._evaluations.wait(self._check_evaluation)

    def end_training(self) -> None:
        """Ends playing and learning.

        Raises:
            RunFailed: a process died.
        """
        self._stop_simulations()
        refs = {
            server_id: actor.finish_training.remote(_UPDATE_TIMEOUT_S)
            for server_id, actor in self._servers.items()
        }
        for server_id, ref in refs.items():
            timeout_s = _UPDATE_TIMEOUT_S + _REPORT_TIMEOUT_S
            self._take(server_id, self._get(ref, timeout_s, f"server {server_id!r}", server_id))

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
            self._stop_simulations()
        try:
            self._stop_servers(unsaved)
        except Exception as error:  # the way out must be gone to its end
            logger.exception("stopping the servers")
            unsaved.append(f"stopping the servers: {type(error).__name__}: {error}")
        if self._evaluator is not None:
            ray.kill(self._evaluator)
            self._evaluator = None
        return unsaved

    def _stop_simulations(self) -> None:
        import ray

        if not self._simulations:
            return
        for actor in self._simulations.values():
            actor.stop.remote()
        with contextlib.suppress(ray.exceptions.RayError):
            ray.wait(list(self._playing), num_returns=len(self._playing), timeout=10.0)
        for name, actor in self._simulations.items():
            with contextlib.suppress(ray.exceptions.RayError):
                self.tally.add(name, ray.get(actor.report.remote(), timeout=5.0))
            ray.kill(actor)
        self._simulations = {}
        self._playing = {}

    def _stop_servers(self, unsaved: list[str]) -> None:
        import ray

        alive = dict(self._servers)
        self._servers = {}
        if not alive:
            return
        if not self.has_started:  # nothing to save, and one still being built does not answer
            for actor in alive.values():
                ray.kill(actor)
            return
        lasts = {
            server_id: actor.finish_training.remote(_STOP_TIMEOUT_S)
            for server_id, actor in alive.items()
        }
        with contextlib.suppress(ray.exceptions.RayError):
            ray.wait(list(lasts.values()), num_returns=len(lasts), timeout=_STOP_TIMEOUT_S + 5.0)
        for server_id, ref in lasts.items():
            # Not even a full disk keeps a server alive.
            with contextlib.suppress(ray.exceptions.RayError, OSError):
                self._note(server_id, ray.get(ref, timeout=0.0))
        saves = {}
        if self.config.checkpoint.at_end:
            for server_id, actor in alive.items():
                path = (self._folder.checkpoints / server_id / "last").absolute()
                saves[server_id] = actor.save.remote(path)
        for server_id, ref in saves.items():
            try:
                ray.get(ref, timeout=_STOP_TIMEOUT_S)
            except ray.exceptions.RayError as error:
                unsaved.append(f"no checkpoint of server {server_id!r}: {_why_unsaved(error)}")
                logger.warning(unsaved[-1])
        ray.wait(
            [actor.stop.remote() for actor in alive.values()],
            num_returns=len(alive),
            timeout=_STOP_TIMEOUT_S,
        )
        for actor in alive.values():
            ray.kill(actor)


def _why_unsaved(error: Exception) -> str:
    import ray

    if isinstance(error, ray.exceptions.GetTimeoutError):
        return f"it was not written within {_STOP_TIMEOUT_S:g} s"
    if isinstance(error, ray.exceptions.RayTaskError):
        return f"{type(error.cause).__name__}: {error.cause}"
    return cause_of_death(error)
