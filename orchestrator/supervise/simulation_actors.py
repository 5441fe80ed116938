"""The simulation processes of a run: held, allowed so many steps, watched, and ended."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from muxrl.client.adapters.factory import fill_in
from muxrl.orchestrator.config import ExperimentConfig, TimeoutsConfig
from muxrl.orchestrator.config.checks import EXTERNAL
from muxrl.orchestrator.config.parameters import of_evaluations
from muxrl.orchestrator.errors import RunFailed, Silent
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.supervise.actors import is_dead, outcome
from muxrl.orchestrator.supervise.allowances import Allowances
from muxrl.orchestrator.supervise.command_process import CommandProcess
from muxrl.orchestrator.supervise.episodes import Patience, ServerAddress
from muxrl.orchestrator.supervise.gateway_process import (
    GATEWAY,
    GatewayProcess,
    GivenParameters,
)
from muxrl.orchestrator.supervise.restarts import Quota
from muxrl.orchestrator.supervise.simulation_process import (
    EpisodeSeeds,
    SimulationProcess,
    SimulationReport,
)
from muxrl.orchestrator.supervise.supervision import ANSWER_S, Supervision

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 10.0
_HOLD_SLACK_S = 5.0
"""For the way there and back, on a busy machine."""
_SKIPPED_SEEDS = 10_000
"""More than a process begins episodes between two reports."""


def patience(timeouts: TimeoutsConfig) -> Patience:
    """Returns how long simulations wait for servers: until one is missed and started again."""
    return Patience(timeouts.report_s + timeouts.start_s, timeouts.update_s)


class SimulationActors(Supervision[SimulationReport]):
    """The simulations of one run; none until `start`. In place of external ones, the gateway.

    One that is lost is started again, as `simulation.restarts` allows, with the seeds that follow.

    Args:
        config: of the run.
        folder: the run's directory.
        on_report: called with each simulation's name and report.
        on_restart: called when a simulation is lost and started again, with its name and the prefix
            of the ids of its episodes; None where nobody knows them.
        num_episodes_begun: by process, of a run that is resumed.
        parameters: see `tell`.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        folder: RunDirectory,
        on_report: Callable[[str, SimulationReport], None],
        on_restart: Callable[[str, str | None], None],
        num_episodes_begun: Mapping[str, int] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        simulation, timeouts = config.simulation, config.timeouts
        self._is_external = simulation.env == EXTERNAL
        names = [f"simulation-{i}" for i in range(simulation.num_processes)]
        if self._is_external:
            names = [GATEWAY, *(names if simulation.command else [])]
        quotas = {name: Quota(simulation.restarts, "simulation.restarts") for name in names}
        first_s = timeouts.start_s + timeouts.make_env_s * simulation.num_envs_per_process
        super().__init__(config, folder, quotas, on_report, on_restart, first_s)
        self.num_episodes_begun = dict(num_episodes_begun or {})
        """By process, as of its last report."""
        self.last_loss = ""
        """Which process was lost last, and why, in a sentence; "" if none was."""
        self._parameters = parameters or {}
        self._servers: Mapping[str, ServerAddress] = {}
        self._is_playing = False
        self._is_held = False
        self._num_holds = 0
        self._waiting_to_play: set[str] = set()
        self._playing: dict[Any, str] = {}
        self._allowances = Allowances()
        self._num_episodes = 0
        """That are over at the gateway."""
        self._num_episodes_before: dict[str, int] = {}
        """By program, as of when it was started."""
        self.gateway: Any = None
        """The gateway's process, where simulations are external; it lasts until `end`. One that is
        started again is another one once it listens."""
        self.gateway_address = ""
        points = config.stop.env_steps, config.evaluation.interval_env_steps
        if self._is_external:  # they play on to the ends of episodes before they evaluate
            points = config.stop.env_steps, None
        self._is_limited = points != (None, None)
        self._is_training_over = False

    def start(self, servers: Mapping[str, ServerAddress], scheduling: Any) -> None:
        """Starts all processes; they make their environments and connect.

        Raises:
            RunFailed: the gateway did not come up.
        """
        self._servers, self._scheduling = servers, scheduling
        for name in self._quotas:
            self._start(name)
            self._wait_until_they_listen()  # as the gateway does, before programs look for it

    def _start(self, name: str) -> None:
        if name == GATEWAY:
            self._start_gateway()
            return
        if self._is_external:
            self._start_command(name)
        else:
            self._start_simulation(name)
        if self._is_playing:
            self._run(name)

    def _run(self, name: str) -> None:
        """Has a process play; while all are held, it begins once they are released."""
        if self._is_held:
            self._waiting_to_play.add(name)
            return
        self._num_episodes_before[name] = self._num_episodes
        self._playing[self._actors[name].run.remote()] = name
        if self._is_limited and name in self._players:
            self._allowances.add(name, self._actors[name])

    def _start_gateway(self) -> None:
        config = self._config.simulation.gateway
        if self.gateway_address:  # once more: where simulations look for it
            config = replace(config, port=int(self.gateway_address.rpartition(":")[2]))
        self._on_loss[GATEWAY] = ""
        self._launch(
            GATEWAY,
            GatewayProcess,
            config,
            self._servers,
            patience(self._timeouts),
            self._folder.log(GATEWAY),
            self._quotas[GATEWAY].num_taken,
            self._is_limited,
            self._config.simulation.respawn != "refuse",
            GivenParameters(
                self._parameters,
                of_evaluations(self._config),
                self._config.seed,
                self._config.evaluation.max_episode_steps,
            ),
            listens=True,
            num_cpus=0,
            max_concurrency=10,  # run, hold, evaluate, report, allow twice or more, ...
        )

    def _listens(self, name: str, answer: Any) -> None:
        self.gateway = self._actors[GATEWAY]
        self.gateway_address = self.gateway_address or answer
        if self._is_training_over:
            self.gateway.stop.remote()
            return
        if self._is_held:
            self.gateway.hold.remote(self._num_holds, 0.0, 0.0)
        if self._is_playing:
            self._run(GATEWAY)

    def _who(self, name: str) -> str:
        return "the gateway" if name == GATEWAY else name

    def _start_command(self, name: str) -> None:
        simulation = self._config.simulation
        command = fill_in(simulation.command, int(name.rpartition("-")[2]))
        gateway = f"http://{self.gateway_address}"
        self._on_loss[name] = None
        self._launch(
            name,
            CommandProcess,
            [str(part).replace("{gateway}", gateway) for part in command],
            self._folder.log(name),
            num_cpus=simulation.num_cpus,
            max_concurrency=4,  # run, report, stop
        )

    def _start_simulation(self, name: str) -> None:
        simulation, number = self._config.simulation, int(name.rpartition("-")[2])
        # Not the name alone, which its successor has, too.
        prefix = self._on_loss[name] = f"{name}-{uuid.uuid4().hex[:8]}-"
        num_drawn = self.num_episodes_begun.get(name, 0)
        self._launch(
            name,
            SimulationProcess,
            simulation,
            number,
            self._servers,
            EpisodeSeeds.of_process(self._config.seed, name, num_drawn),
            patience(self._timeouts),
            prefix,
            self._folder.log(name),
            [s for s, c in self._config.servers.items() if c.on_server_loss == "random"],
            self._is_limited,
            self._parameters,
            (self._folder.episodes / name).absolute(),
            num_cpus=simulation.num_cpus,
            has_main_thread=True,
            max_concurrency=8,  # run, hold, report, stop, give_back, allow twice or more
        )

    def play(self) -> None:
        """Lets all of them play training episodes from now on."""
        self._is_playing = True
        for name in self._actors:
            self._run(name)

    def allow(self, num_env_steps: int) -> None:
        """Allows all of them together so many env steps after those of their newest reports.

        They share them, and pause when all are used up; see `is_used_up`.
        """
        self._allowances.share_out(num_env_steps)

    def tell(self, parameters: Mapping[str, Any]) -> None:
        """Has the episodes that begin from now on get these, see `PlayLoop.parameters`."""
        if parameters != self._parameters:
            self._parameters = parameters
            for actor in self._players.values():
                if actor is not None:  # else it gets them when it is started again
                    actor.tell.remote(parameters)

    @property
    def is_used_up(self) -> bool:
        """Whether all pause, since they have played what they were allowed."""
        return self._is_limited and not self._allowances.calls

    def watch(self, time_s: float, notice_deaths: Callable[[], None]) -> None:
        """Sleeps, unless a simulation ends, which it never should: then it is started again.

        It ends at once when all of them have used up what they were allowed.

        Args:
            time_s: how long.
            notice_deaths: looks after servers that have died. Simulations then fail, too, and if
                the run ends, it reports the cause, not the consequence.

        Raises:
            RunFailed: a process was lost once too often.
        """
        if not self._playing:
            time.sleep(time_s)
            return
        import ray

        deadline = time.monotonic() + time_s
        while calls := self._allowances.calls:
            left_s = max(0.0, deadline - time.monotonic())
            used_up, _ = ray.wait([*calls, *self._playing], timeout=left_s)
            if not used_up or used_up[0] in self._playing:
                break
            self._allowances.take(used_up[0])
            if not self._allowances.calls:
                return
        self._look_for_ends(max(0.0, deadline - time.monotonic()), notice_deaths)

    def _look_for_ends(self, time_s: float, notice_deaths: Callable[[], None]) -> None:
        import ray

        for ref in ray.wait(list(self._playing), timeout=time_s)[0]:
            name = self._playing[ref]
            if isinstance(answer := outcome(ref), Exception):
                notice_deaths()
                self._lose(name, answer)
                continue
            del self._playing[ref]
            if self._has_played_one(name):  # as simulators do that play one episode and end
                self._run(name)
            else:
                self._lose(name, Silent("ended by itself, without an episode that it played"))

    def _has_played_one(self, name: str) -> bool:
        """Whether an episode ended while a program ran; the gateway does not know by whom."""
        if not self._is_external or name == GATEWAY or self.gateway is None:
            return False
        self._take_last(GATEWAY, self.gateway)
        return self._num_episodes != self._num_episodes_before[name]  # less: another gateway

    def _take_last(self, name: str, actor: Any) -> None:
        """Takes in how things stand at a process now, unless it is lost."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            self._take(name, ray.get(actor.report.remote(), timeout=ANSWER_S))

    def collect(self, wait_s: float) -> None:
        """As of every kind; looks after programs, too, once training is over."""
        if self._is_training_over and self._playing:  # nobody watches any more
            self._look_for_ends(0.0, lambda: None)
        super().collect(wait_s)

    def _leave(self, name: str, actor: Any, error: Exception) -> None:
        self.last_loss = str(self._failure(name, error))
        self._waiting_to_play.discard(name)
        self._allowances.drop(name)
        self._playing = {ref: other for ref, other in self._playing.items() if other != name}
        if isinstance(error, Silent) or is_dead(error):
            # What it has begun since its last report nobody knows; no seed is to come twice.
            begun = self.num_episodes_begun.get(name, 0) + _SKIPPED_SEEDS
            self.num_episodes_begun[name] = begun
        else:  # it has raised, and still answers
            self._take_last(name, actor)

    def _again(self, name: str) -> str:
        return f"at {self.gateway_address}" if name == GATEWAY else "with the seeds that follow"

    def hold(self, grace_s: float, update_s: float, look: Callable[[], bool]) -> list[str]:
        """Has all environments pause; `release` lets them go on.

        A process that is started again meanwhile begins to play then, too.

        Args:
            grace_s: for so long, they play their episodes to the end.
            update_s: for how long to wait after that for a step, in which a server may learn.
            look: looks after all processes meanwhile; returns whether it is worth to wait on.

        Returns:
            The processes whose environments have not paused in time; those that do not live are
            not among them.
        """
        import ray

        self._num_holds += 1
        self._is_held = True
        calls = {
            a.hold.remote(self._num_holds, grace_s, update_s): name
            for name, a in self._players.items()
        }
        late = set(calls.values())
        left = list(calls)
        deadline = time.monotonic() + grace_s + update_s + _HOLD_SLACK_S
        while left and time.monotonic() < deadline:
            done, left = ray.wait(left, num_returns=len(left), timeout=min(1.0, grace_s + update_s))
            for ref in done:
                if outcome(ref):  # or it has died; `collect` sees it
                    late.discard(calls[ref])
            if left and not look():
                break
        return sorted(late)

    def release(self) -> None:
        """Lets all environments go on."""
        for actor in self._players.values():
            actor.release.remote(self._num_holds)
        self._let_begin()

    def _let_begin(self) -> None:
        self._is_held = False
        for name in self._waiting_to_play:
            self._run(name)
        self._waiting_to_play.clear()

    @property
    def _players(self) -> Mapping[str, Any]:
        """The processes that say what is played."""
        return {GATEWAY: self.gateway} if self._is_external else self._actors

    def stop(self) -> None:
        """Ends training, and all processes after the step they are in; again it does nothing.

        External simulations, and the gateway, may go on with evaluations until `end`.
        """
        import ray

        if self._is_external:
            self._stop_gateway()
            return
        self._is_playing = False
        actors, self._actors = self._actors, {}
        playing, self._playing = self._playing, {}
        for actor in actors.values():
            actor.stop.remote()
        if playing:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.wait(list(playing), num_returns=len(playing), timeout=_STOP_TIMEOUT_S)
        for name, answer in self._answers(ANSWER_S):
            if isinstance(answer, SimulationReport):
                self._take(name, answer)
        for name, actor in actors.items():
            self._take_last(name, actor)
            ray.kill(actor)

    def _stop_gateway(self) -> None:
        import ray

        if self._is_training_over or self.gateway is None:
            return
        self._is_training_over = True
        # Its `run` returns now, as it should.
        self._playing = {ref: name for ref, name in self._playing.items() if name != GATEWAY}
        self._waiting_to_play.discard(GATEWAY)
        # What ends with training is to be in the report.
        ray.wait([self.gateway.stop.remote()], timeout=ANSWER_S)
        self._take_last(GATEWAY, self.gateway)
        self._let_begin()

    def check_played(self, env_steps: int, num_before: int | None, time_s: float) -> None:
        """Refuses to call a run done in which no simulation has played.

        One that was resumed may have had no more to play than its evaluation.

        Args:
            env_steps: of the run.
            num_before: those of the checkpoint from which it was resumed; None: it is new.
            time_s: of training.

        Raises:
            RunFailed: nothing was played.
        """
        if env_steps == (num_before or 0) and (self.last_loss or num_before is None):
            raise RunFailed(
                f"no simulation finished an env step in {time_s:.0f} s: "
                + (
                    self.last_loss
                    or f"none was ready, or could reach its servers; see {self._folder.logs}"
                )
            )

    def end(self, story: str, *, has_ended_well: bool) -> None:
        """Ends the gateway, if there is one; external simulations are told that all is over.

        Args:
            story: what they are told.
            has_ended_well: whether the run has come to its end.
        """
        import ray

        if self.gateway is None:
            return
        gateway, self.gateway = self.gateway, None
        actors, self._actors, self._playing = self._actors, {}, {}
        ends = [gateway.end.remote(story, has_ended_well)]
        patience_s = _STOP_TIMEOUT_S if has_ended_well else 0.0
        ends += [a.stop.remote(patience_s) for name, a in actors.items() if name != GATEWAY]
        ray.wait(ends, num_returns=len(ends), timeout=2 * _STOP_TIMEOUT_S)
        for actor in actors.values():
            ray.kill(actor)

    def _take(self, name: str, report: SimulationReport) -> None:
        self.num_episodes_begun[name] = report.num_episodes_begun
        self._allowances.note(name, report.num_env_steps)
        if name == GATEWAY:
            self._num_episodes = report.num_over
        super()._take(name, report)
