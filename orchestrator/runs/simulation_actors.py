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
from muxrl.orchestrator.runs.processes import EpisodeSeeds, SimulationProcess, SimulationReport

_STOP_TIMEOUT_S = 10.0
_LAST_REPORT_TIMEOUT_S = 5.0
_HOLD_SLACK_S = 5.0
"""For the way there and back, on a busy machine."""


class SimulationActors:
    """The simulations of one run; none until `start`, and none ever where they are external.

    Args:
        config: of the run.
        folder: the run's directory.
        on_report: called with each simulation's name and report.
        num_episodes_begun: by process, of a run that is resumed.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        folder: RunDirectory,
        on_report: Callable[[str, SimulationReport], None],
        num_episodes_begun: Mapping[str, int] | None = None,
    ) -> None:
        self._config = config
        self._folder = folder
        self._on_report = on_report
        self.num_episodes_begun = dict(num_episodes_begun or {})
        """By process, as of its last report."""
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
                EpisodeSeeds(
                    derive_seed(self._config.seed, "simulation", str(i)),
                    self.num_episodes_begun.get(name, 0),
                ),
                self._config.timeouts.update_s,
                self._folder.log(name),
                scheduling=scheduling,
                num_cpus=simulation.num_cpus,
                max_concurrency=4,  # run, hold, report, stop
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
            timeout_s, log = self._config.timeouts.report_s, self._folder.log(name)
            self._take(name, answer_of(ref, timeout_s, name, log, "timeouts.report_s"))

    def hold(self, grace_s: float, update_s: float) -> list[str]:
        """Has all environments pause; `release` lets them go on.

        Args:
            grace_s: for so long, they play their episodes to the end.
            update_s: for how long to wait after that for a step, in which a server may learn.

        Returns:
            The processes whose environments have not paused in time; those that do not live are
            not among them.
        """
        import ray

        holds = {n: actor.hold.remote(grace_s, update_s) for n, actor in self._actors.items()}
        late: list[str] = []
        for name, ref in holds.items():
            try:
                is_held = ray.get(ref, timeout=grace_s + update_s + _HOLD_SLACK_S)
            except ray.exceptions.GetTimeoutError:
                is_held = False
            except ray.exceptions.RayError:  # it has died, which `watch` finds
                continue
            if not is_held:
                late.append(name)
        return late

    def release(self) -> None:
        """Lets all environments go on."""
        for actor in self._actors.values():
            actor.release.remote()

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
                self._take(name, ray.get(actor.report.remote(), timeout=_LAST_REPORT_TIMEOUT_S))
            ray.kill(actor)

    def _take(self, name: str, report: SimulationReport) -> None:
        self.num_episodes_begun[name] = report.num_episodes_begun
        self._on_report(name, report)
