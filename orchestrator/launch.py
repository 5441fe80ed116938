"""The life of a run: start servers and simulations, supervise, evaluate, stop, report.

Everything runs in Ray actors; this process holds the run directory and watches. However a run
ends, by its stop conditions, by Ctrl-C, or because something died, the way out is the same:
simulations first, then servers, then Ray, then the report of what there is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from orchestrator.config import Experiment, to_yaml
from orchestrator.config.resolve import derive_seed
from orchestrator.evaluation import Evaluations
from orchestrator.local_ray import ONE_THREAD, start_local_ray, stop_local_ray
from orchestrator.metrics import MetricsWriter
from orchestrator.processes import (
    EvaluationProcess,
    ServerAddress,
    ServerProcess,
    ServerReport,
    SimulationProcess,
)
from orchestrator.progress import Progress, ServerSnapshot, Snapshot
from orchestrator.report import print_report, write_report
from orchestrator.run_directory import RunDirectory
from orchestrator.signals import claim_sigterm, interrupts_ignored, sigterm_as_interrupt
from orchestrator.stop_conditions import StopConditions
from orchestrator.tally import Tally

logger = logging.getLogger(__name__)

EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 130

_START_TIMEOUT_S = 120.0
_REPORT_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 45.0
_DEATH_NOTICE_S = 3.0
"""How long a server's death may take to be known after a simulation has felt it."""


class RunFailed(Exception):
    """A process of the run died or gave up; the sentence names it and its log."""


def launch(experiment: Experiment, run_dir: Path | None, show_progress: bool) -> int:
    """Runs an experiment to its end and reports.

    Args:
        experiment: resolved; nothing about it is wrong any more.
        run_dir: the run's directory, which must not exist yet; None makes one under the
            experiment's `runs_dir`.
        show_progress: whether to show the run's state while it goes on.

    Returns:
        The process's exit code: 0 when a stop condition was reached, 1 when something died,
        130 after Ctrl-C.
    """
    console = Console()
    folder = _make_folder(experiment, run_dir)
    _describe(experiment, folder)
    console.print(f"run directory: {folder.path}", soft_wrap=True, highlight=False)
    code, problem = EXIT_DONE, ""
    with sigterm_as_interrupt(), MetricsWriter(folder, experiment.config.tensorboard) as metrics:
        run = Run(experiment, folder, metrics, console, show_progress)
        try:
            run.start()
            run.supervise()
            run.finish()
        except KeyboardInterrupt:
            code, problem = EXIT_INTERRUPTED, "interrupted; what was measured is kept"
        except RunFailed as error:
            code, problem = EXIT_FAILED, str(error)
        finally:
            with interrupts_ignored():
                run.stop()
    if run.has_started:
        with interrupts_ignored():
            print_report(write_report(folder), console)
    console.print(f"run directory: {folder.path}", soft_wrap=True, highlight=False)
    if problem:
        Console(stderr=True).print(f"muxrl: {problem}", soft_wrap=True, markup=False)
    return code


class Run:
    """The processes of one run. Call `start`, `supervise`, `finish`, and `stop` in any case."""

    def __init__(
        self,
        experiment: Experiment,
        folder: RunDirectory,
        metrics: MetricsWriter,
        console: Console,
        show_progress: bool,
    ) -> None:
        self.experiment = experiment
        self.config = experiment.config
        self.has_started = False
        self._folder = folder
        self._metrics = metrics
        self._console = console
        self._show_progress = show_progress
        self._servers: dict[str, Any] = {}
        self._simulations: dict[str, Any] = {}
        self._evaluator: Any = None
        self._addresses: dict[str, ServerAddress] = {}
        self._pids: dict[str, int] = {}
        self._playing: dict[Any, str] = {}
        self._reports: dict[str, ServerReport] = {}
        self._evaluations: Evaluations | None = None
        self._tally = Tally()
        self._stop_conditions = StopConditions(self.config.stop, experiment.fixed_servers)
        self._ray_folder: str | None = None
        self._saved_at_s = 0.0

    # --- start --------------------------------------------------------------------------

    def start(self) -> None:
        """Starts Ray, the servers, and once all are ready the simulations.

        Raises:
            RunFailed: one of them did not come up.
        """
        self._start_ray()
        claim_sigterm()
        self._start_servers()
        if not self.experiment.is_external:
            self._start_simulations()
        self.has_started = True

    def _start_ray(self) -> None:
        import ray

        if self.config.address:
            logging.getLogger("ray").setLevel(logging.ERROR)
            ray.init(address=self.config.address, log_to_driver=False, logging_level=logging.ERROR)
        else:
            num_cpus = max(os.cpu_count() or 1, self._num_cpus_wanted())
            try:
                self._ray_folder = start_local_ray(num_cpus)
            except Exception as error:
                raise RunFailed(f"Ray did not start: {type(error).__name__}: {error}") from error

    def _num_cpus_wanted(self) -> int:
        """Logical CPUs for every process at once: on one machine nobody waits for a place."""
        servers = sum(plan.resources.num_cpus for plan in self.experiment.servers.values())
        simulations = self.config.simulation.num_cpus * (self.config.simulation.num_processes + 1)
        return int(servers + simulations) + 1

    def _start_servers(self) -> None:
        import ray

        for server_id, plan in self.experiment.servers.items():
            actor = ray.remote(ServerProcess).options(
                num_cpus=plan.resources.num_cpus,
                num_gpus=plan.resources.num_gpus,
                max_concurrency=4,
                max_restarts=0,
                runtime_env=self._environment(),
            )
            self._servers[server_id] = actor.remote(plan, self._log(server_id))
        starts = {actor.start.remote(): s for s, actor in self._servers.items()}
        for ref, server_id in starts.items():
            address, pid = self._get(ref, _START_TIMEOUT_S, f"server {server_id!r}", server_id)
            self._addresses[server_id] = ServerAddress(
                address, self.experiment.servers[server_id].token
            )
            self._pids[server_id] = pid
        addresses = {s: a.address for s, a in self._addresses.items()}
        self._folder.write_addresses(addresses)
        where = ", ".join(
            f"{s} ({self.experiment.servers[s].algorithm}) on {a}" for s, a in addresses.items()
        )
        self._console.print(f"servers: {where}", soft_wrap=True, highlight=False)

    def _start_simulations(self) -> None:
        import ray

        simulation = self.config.simulation
        for i in range(simulation.num_processes):
            name = f"simulation-{i}"
            actor = ray.remote(SimulationProcess).options(
                num_cpus=simulation.num_cpus,
                max_concurrency=3,
                max_restarts=0,
                runtime_env=self._environment(),
            )
            seed = derive_seed(self.config.seed, "simulation", str(i))
            self._simulations[name] = actor.remote(
                simulation, self._addresses, seed, self._log(name)
            )
        self._evaluator = (
            ray.remote(EvaluationProcess)
            .options(num_cpus=simulation.num_cpus, max_restarts=0, runtime_env=self._environment())
            .remote(simulation, self._addresses, self._log("evaluation"))
        )
        from servers.algorithms.registry import get_algorithm

        can_sample = {
            server_id: get_algorithm(plan.algorithm).samples_actions
            for server_id, plan in self.experiment.servers.items()
            if server_id not in self.experiment.fixed_servers
        }
        self._evaluations = Evaluations(
            self.config.evaluation, can_sample, self._evaluator, self._metrics
        )

    @staticmethod
    def _environment() -> dict[str, Any]:
        """What every process finds in its environment; the user's own modules are importable."""
        paths = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        return {"env_vars": {**ONE_THREAD, "PYTHONPATH": os.pathsep.join(paths)}}

    def _log(self, name: str) -> Path:
        return (self._folder.logs / f"{name}.log").absolute()

    # --- supervise ----------------------------------------------------------------------

    def supervise(self) -> None:
        """Watches until a stop condition holds; writes metrics and shows progress meanwhile.

        Raises:
            RunFailed: a process died, a simulation raised, or training failed.
        """
        if self._evaluations is not None and self.config.evaluation.interval_env_steps:
            self._evaluations.begin(0, 0.0)
            self._evaluations.wait(self._check_evaluation)
        for name, actor in self._simulations.items():
            self._playing[actor.run.remote()] = name
        self._tally.begin()
        rows = [
            ServerSnapshot(s, p.algorithm, weights_seq_no=self._version_of(s, 0))
            for s, p in self.experiment.servers.items()
        ]
        stop_text = self._stop_conditions.text
        with contextlib.ExitStack() as stack:
            progress = None
            if self._show_progress:
                progress = stack.enter_context(Progress(self.config.name, rows, stop_text))
            while True:
                self._watch_simulations(self.config.metrics_interval_s)
                self._gather()
                if self._evaluations is not None:
                    self._evaluations.collect(self._check_evaluation)
                    self._evaluations.begin_if_due(self._tally.env_steps, self._tally.time_s)
                self._metrics.joint(self._tally.record())
                self._save_if_due()
                if progress is not None:
                    progress.update(self._snapshot())
                if self._stop_conditions.reached(self._tally, self._statuses()):
                    return

    def _save_if_due(self) -> None:
        interval_s = self.config.checkpoint.interval_s
        if interval_s is None or self._tally.time_s - self._saved_at_s < interval_s:
            return
        self._saved_at_s = self._tally.time_s
        for server_id, actor in self._servers.items():
            folder = self._folder.checkpoints / server_id / f"{self._tally.env_steps}_env_steps"
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
        import ray

        # Where a server died, simulations fail, too: the cause is told, not the consequence.
        deadline = time.monotonic() + _DEATH_NOTICE_S
        for server_id, actor in self._servers.items():
            try:
                ray.get(actor.report.remote(), timeout=max(0.1, deadline - time.monotonic()))
            except ray.exceptions.RayActorError as death:
                return self._server_died(server_id, death)
            except ray.exceptions.GetTimeoutError:
                continue
        if isinstance(error, ray.exceptions.RayActorError):
            return RunFailed(f"{name} died ({_cause(error)}); its log: {self._log(name)}")
        cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
        return RunFailed(f"{name} failed: {cause}; its log: {self._log(name)}")

    def _server_died(self, server_id: str, error: Exception) -> RunFailed:
        return RunFailed(
            f"server {server_id!r} (pid {self._pids.get(server_id, '?')}, "
            f"{self.experiment.servers[server_id].algorithm}) died ({_cause(error)}); "
            f"its log: {self._log(server_id)}"
        )

    def _gather(self) -> None:
        """Asks every process how it is, all at once."""
        server_refs = {s: actor.report.remote() for s, actor in self._servers.items()}
        simulation_refs = {n: actor.report.remote() for n, actor in self._simulations.items()}
        for server_id, ref in server_refs.items():
            report = self._get(ref, _REPORT_TIMEOUT_S, f"server {server_id!r}", server_id)
            self._take(server_id, report)
        for name, ref in simulation_refs.items():
            self._tally.add(name, self._get(ref, _REPORT_TIMEOUT_S, name, None))
        if self.experiment.is_external:
            self._tally.set_external(self._statuses())
        self._tally.tick()

    def _take(self, server_id: str, report: ServerReport) -> None:
        self._reports[server_id] = report
        for record in report.records:
            self._metrics.server(server_id, record)
            self._tally.last_records[server_id] = record
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
        import ray

        path = self._log(log or server_id or who)
        try:
            return ray.get(ref, timeout=timeout_s)
        except ray.exceptions.GetTimeoutError:
            raise RunFailed(f"{who} did not answer for {timeout_s:g} s; its log: {path}") from None
        except ray.exceptions.RayTaskError as error:
            raise RunFailed(f"{who} failed: {error.cause}; its log: {path}") from error
        except ray.exceptions.RayActorError as error:
            if server_id is not None and server_id in self._pids:
                raise self._server_died(server_id, error) from error
            raise RunFailed(f"{who} died ({_cause(error)}); its log: {path}") from error

    def _version_of(self, server_id: str, weights_seq_no: int) -> int | None:
        return None if server_id in self.experiment.fixed_servers else weights_seq_no

    def _statuses(self) -> dict[str, Any]:
        return {server_id: report.status for server_id, report in self._reports.items()}

    def _snapshot(self) -> Snapshot:
        servers = []
        for server_id, plan in self.experiment.servers.items():
            status = self._reports[server_id].status
            record = self._tally.last_records.get(server_id, {})
            servers.append(
                ServerSnapshot(
                    server_id,
                    plan.algorithm,
                    self._addresses[server_id].address,
                    status.phase,
                    status.is_waiting_for_learner,
                    status.num_env_steps,
                    self._tally.pace(server_id, status.num_env_steps),
                    status.episode_return_mean,
                    self._version_of(server_id, status.weights_seq_no),
                    record.get("policy_lag_mean"),
                    record.get("loss"),
                )
            )
        tally = self._tally
        is_evaluating = self._evaluations is not None and self._evaluations.is_running
        return Snapshot(
            tally.time_s,
            tally.env_steps,
            tally.env_steps_per_s,
            tally.num_episodes,
            self._stop_conditions.time_left_s(tally, self._statuses()),
            self._stop_conditions.text,
            servers,
            "evaluating" if is_evaluating else "",
        )

    # --- end ----------------------------------------------------------------------------

    def finish(self) -> None:
        """Ends playing and learning, and evaluates and saves what was learned."""
        self._stop_simulations()
        refs = {s: actor.finish_training.remote() for s, actor in self._servers.items()}
        for server_id, ref in refs.items():
            self._take(
                server_id, self._get(ref, _REPORT_TIMEOUT_S, f"server {server_id!r}", server_id)
            )
        if self._evaluations is not None and self.config.evaluation.final_num_episodes:
            if self._show_progress:
                self._console.print("evaluating: each server against random agents in its place")
            self._evaluations.wait(self._check_evaluation)
            self._evaluations.begin(self._tally.env_steps, self._tally.time_s, is_final=True)
            self._evaluations.wait(self._check_evaluation)

    def stop(self) -> None:
        """Ends every process that is left; saves checkpoints; never raises."""
        import ray

        if not ray.is_initialized():
            return
        with contextlib.suppress(Exception):
            self._stop_simulations()
        try:
            self._stop_servers()
        except Exception:  # the way out must be gone to its end
            logger.exception("stopping the servers")
        if self._ray_folder is None:
            ray.shutdown()
        else:
            stop_local_ray(self._ray_folder)

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
                self._tally.add(name, ray.get(actor.report.remote(), timeout=5.0))
            ray.kill(actor)
        self._simulations = {}
        self._playing = {}

    def _stop_servers(self) -> None:
        import ray

        alive = dict(self._servers)
        self._servers = {}
        if not self.has_started:  # nothing to save, and one still being built does not answer
            for actor in alive.values():
                ray.kill(actor)
            return
        with contextlib.suppress(ray.exceptions.RayError):
            ray.wait(
                [actor.finish_training.remote() for actor in alive.values()],
                num_returns=len(alive),
                timeout=_STOP_TIMEOUT_S,
            )
        saves = {}
        if self.config.checkpoint.at_end and self.has_started:
            for server_id, actor in alive.items():
                path = (self._folder.checkpoints / server_id / "last").absolute()
                saves[server_id] = actor.save.remote(path)
        for server_id, ref in saves.items():
            try:
                ray.get(ref, timeout=_STOP_TIMEOUT_S)
            except ray.exceptions.RayError as error:
                logger.warning("no checkpoint of server %r: %s", server_id, _cause(error))
        ray.wait(
            [actor.stop.remote() for actor in alive.values()],
            num_returns=len(alive),
            timeout=_STOP_TIMEOUT_S,
        )
        for actor in alive.values():
            ray.kill(actor)


def _cause(error: Exception) -> str:
    """Ray's reason for an actor's death, in one line without its boilerplate."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in lines:
        if "exit" in line.lower() or "killed" in line.lower() or "out of memory" in line.lower():
            return line[:300]
    return lines[0][:300] if lines else type(error).__name__


def _make_folder(experiment: Experiment, run_dir: Path | None) -> RunDirectory:
    if run_dir is None:
        root = Path(experiment.config.runs_dir)
        return RunDirectory.create(root, experiment.config.name, datetime.now())
    return RunDirectory.create_at(run_dir)


def _describe(experiment: Experiment, folder: RunDirectory) -> None:
    """Writes down all that is known before the run: config, plan, versions."""
    folder.write_config(to_yaml(experiment.config))
    folder.write_versions()
    folder.write_plan(
        {
            "servers": {
                server_id: {
                    "algorithm": plan.algorithm,
                    "agents": list(plan.agents),
                    "groups": {g: list(m) for g, m in plan.groups.items()},
                    "learns": server_id not in experiment.fixed_servers,
                    "seed": plan.seed,
                }
                for server_id, plan in experiment.servers.items()
            },
            "assignment": experiment.assignment,
            "seed": experiment.config.seed,
        }
    )
