"""The simulation processes of a run: started together, watched, asked, and ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from muxrl.orchestrator.config import ExperimentConfig
from muxrl.orchestrator.config.seeds import derive_seed
from muxrl.orchestrator.errors import RunFailed
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.runs.actors import answer_of, failure, start_actor
from muxrl.orchestrator.runs.episodes import ServerAddress
from muxrl.orchestrator.runs.processes import SimulationProcess, SimulationReport

_REPORT_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 10.0
_LAST_REPORT_TIMEOUT_S = 5.0


class SimulationActors:
    """The simulations of one run; none until `start`, and none ever where they are external.

    Args:
        config: of the run.
        folder: the run's directory.
        on_report: called with each simulation's name and report.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        folder: RunDirectory,
        on_report: Callable[[str, SimulationReport], None],
    ) -> None:
        self._config = config
        self._folder = folder
        self._on_report = on_report
        self._actors: dict[str, Any] = {}
        self._playing: dict[Any, str] = {}

    def start(self, servers: Mapping[str, ServerAddress], scheduling: Any) -> None:
        """Starts all processes; they make their environments and connect."""
        simulation = self._config.simulation
        for i in range(simulation.num_processes):
            name = f"simulation-{i}"
            self._actors[name] = start_actor(
                SimulationProcess,
                simulation,
                servers,
                derive_seed(self._config.seed, "simulation", str(i)),
                self._folder.log(name),
                scheduling=scheduling,
                num_cpus=simulation.num_cpus,
                max_concurrency=3,
            )

    def play(self) -> None:
        """Lets all of them play training episodes from now on."""
        self._playing = {actor.run.remote(): name for name, actor in self._actors.items()}

    def watch(self, time_s: float, find_cause: Callable[[], RunFailed | None]) -> None:
        """Sleeps, unless a simulation ends, which it never should: then the run fails.

        Args:
            time_s: how long.
            find_cause: says whether a server has died. Simulations then fail, too, and the run
                reports the cause, not the consequence.

        Raises:
            RunFailed: a simulation ended.
        """
        import ray

        if not self._playing:
            time.sleep(time_s)
            return
        ended, _ = ray.wait(list(self._playing), timeout=time_s)
        for ref in ended:
            name = self._playing.pop(ref)
            log = self._folder.log(name)
            try:
                ray.get(ref)
            except Exception as error:  # whatever the simulation raised
                raise (find_cause() or failure(name, error, log)) from error
            raise RunFailed(f"{name} ended by itself; its log: {log}")

    def ask(self) -> dict[str, Any]:
        """Asks every process for its report; `collect` waits for the answers."""
        return {name: actor.report.remote() for name, actor in self._actors.items()}

    def collect(self, reports: Mapping[str, Any]) -> None:
        """Takes in the reports that were asked for.

        Raises:
            RunFailed: a process died or did not answer.
        """
        for name, ref in reports.items():
            self._on_report(name, answer_of(ref, _REPORT_TIMEOUT_S, name, self._folder.log(name)))

    def stop(self) -> None:
        """Ends all processes after the step they are in; a second call does nothing."""
        import ray

        actors, self._actors = self._actors, {}
        playing, self._playing = self._playing, {}
        for actor in actors.values():
            actor.stop.remote()
        if playing:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.wait(list(playing), num_returns=len(playing), timeout=_STOP_TIMEOUT_S)
        for name, actor in actors.items():
            with contextlib.suppress(ray.exceptions.RayError):
                self._on_report(
                    name, ray.get(actor.report.remote(), timeout=_LAST_REPORT_TIMEOUT_S)
                )
            ray.kill(actor)
