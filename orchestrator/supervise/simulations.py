"""The simulation processes of a run: held, allowed so many steps, watched, and ended."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from muxrl.client.adapters.factory import fill_in
from muxrl.orchestrator.config import ExperimentConfig, TimeoutsConfig
from muxrl.orchestrator.config.checks import EXTERNAL
from muxrl.orchestrator.config.parameters import of_evaluations
from muxrl.orchestrator.errors import ProcessEnded, RunFailed, Silent
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.supervise.command_process import CommandProcess
from muxrl.orchestrator.supervise.episodes import Patience, ServerAddress
from muxrl.orchestrator.supervise.gateway_process import (
    GATEWAY,
    GatewayProcess,
    GivenParameters,
)
from muxrl.orchestrator.supervise.grants import Grants
from muxrl.orchestrator.supervise.local import Workers
from muxrl.orchestrator.supervise.restarts import Quota
from muxrl.orchestrator.supervise.simulation_process import (
    EpisodeSeeds,
    SimulationProcess,
    SimulationReport,
)
from muxrl.orchestrator.supervise.supervision import ANSWER_S, Supervision
from muxrl.orchestrator.supervise.worker import Caller, first_done, outcome

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 10.0
_HOLD_SLACK_S = 5.0
"""For the way there and back, on a busy machine."""
_SKIPPED_SEEDS = 10_000
"""More than a process begins episodes between two reports."""


def patience(timeouts: TimeoutsConfig) -> Patience:
    """Returns how long simulations wait for servers: until one is missed and started again."""
    return Patience(timeouts.report_s + timeouts.start_s, timeouts.update_s)


class Simulations(Supervision[SimulationReport]):
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

    _kind = "the gateway"

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
        self._waiting_to_play: set[str] = set()
        self._playing: dict[Future[Any], str] = {}
        self._grants = Grants(simulation.num_envs_per_process)
        self._num_episodes = 0
        """That are over at the gateway."""
        self._num_episodes_before: dict[str, int] = {}
        """By program, as of when it was started."""
        self.gateway: Caller | None = None
        """The gateway's process, where simulations are external; it lasts until `end`. One that is
        started again is another one once it listens."""
        self.gateway_address = ""
        points = config.stop.env_steps, config.evaluation.interval_env_steps
        if self._is_external:  # they play on to the ends of episodes before they evaluate
            points = config.stop.env_steps, None
        self._is_limited = points != (None, None)
        self._is_training_over = False

    def start(self, servers: Mapping[str, ServerAddress], workers: Workers) -> None:
        """Starts all processes; they make their environments and connect.

        Raises:
            RunFailed: the gateway did not come up.
        """
        self._servers, self._workers = servers, workers
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
        caller = self._callers[name]
        self._playing[caller.call("run")] = name
        if self._is_limited and name in self._players:
            self._grants.add(name, caller)

    def _start_gateway(self) -> None:
        config = self._config.simulation.gateway
        if self.gateway_address:  # once more: where simulations look for it
            config = replace(config, port=int(self.gateway_address.rpartition(":")[2]))
        self._on_loss[GATEWAY] = ""
        gateway = self._launch(
            GATEWAY,
            GatewayProcess,
            config,
            self._servers,
            patience(self._timeouts),
            self._quotas[GATEWAY].num_taken,
            self._is_limited,
            self._config.simulation.respawn != "refuse",
            GivenParameters(
                self._parameters,
                of_evaluations(self._config),
                self._config.seed,
                self._config.evaluation.max_episode_steps,
            ),
        )
        self._await(GATEWAY, gateway.call("start"))

    def _listens(self, name: str, answer: Any) -> None:
        self.gateway = self._callers[GATEWAY]
        self.gateway_address = self.gateway_address or answer
        if self._is_training_over:
            self.gateway.call("stop")
            return
        if self._is_held:
            self.gateway.call("hold", 0.0, 0.0)
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
            [s for s, c in self._config.servers.items() if c.on_server_loss == "random"],
            self._is_limited,
            self._parameters,
            (self._folder.episodes / name).absolute(),
        )

    def play(self) -> None:
        """Lets all of them play training episodes from now on."""
        self._is_playing = True
        for name in self._callers:
            self._run(name)

    def allow(self, num_env_steps: int) -> None:
        """Allows all of them together so many env steps after those of their newest reports.

        They share them, and pause when all are used up; see `is_used_up`.
        """
        self._grants.extend(num_env_steps)

    def tell(self, parameters: Mapping[str, Any]) -> None:
        """Has the episodes that begin from now on get these, see `EnvLoop.parameters`."""
        if parameters != self._parameters:
            self._parameters = parameters
            for caller in self._players.values():  # one that is started again gets them then
                caller.call("tell", parameters)

    @property
    def is_used_up(self) -> bool:
        """Whether all pause, since they have played what they were allowed."""
        return self._is_limited and self._grants.used_up.done()

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
        for name, error in list(self._grants.failed.items()):  # else all would wait for it
            self._lose(name, Silent(f"cannot play on: {type(error).__name__}: {error}"))
        used_up = self._grants.used_up
        waits = [] if used_up.done() else [used_up]
        ended = first_done([*waits, *self._playing], time_s)
        self._look_for_ends([one for one in ended if one is not used_up], notice_deaths)

    def _look_for_ends(
        self, ended: Iterable[Future[Any]], notice_deaths: Callable[[], None]
    ) -> None:
        for run in ended:
            name = self._playing.get(run)
            if name is None:  # lost since
                continue
            if isinstance(answer := outcome(run), Exception):
                notice_deaths()
                self._lose(name, answer)
                continue
            del self._playing[run]
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

    def _take_last(self, name: str, caller: Caller) -> None:
        """Takes in how things stand at a process now, unless it is lost."""
        with contextlib.suppress(TimeoutError):
            report = outcome(caller.call("report"), ANSWER_S)
            if isinstance(report, SimulationReport):
                self._take(name, report)

    def collect(self, wait_s: float) -> None:
        """As of every kind; looks after programs, too, once training is over."""
        if self._is_training_over and self._playing:  # nobody watches any more
            self._look_for_ends([one for one in self._playing if one.done()], lambda: None)
        super().collect(wait_s)

    def _leave(self, name: str, caller: Caller, error: Exception) -> None:
        self.last_loss = str(self._failure(name, error))
        self._waiting_to_play.discard(name)
        self._grants.drop(name)
        self._playing = {run: other for run, other in self._playing.items() if other != name}
        if isinstance(error, Silent | ProcessEnded):
            # What it has begun since its last report nobody knows; no seed is to come twice.
            begun = self.num_episodes_begun.get(name, 0) + _SKIPPED_SEEDS
            self.num_episodes_begun[name] = begun
        else:  # it has raised, and still answers
            self._take_last(name, caller)

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
        self._is_held = True
        calls = {
            caller.call("hold", grace_s, update_s): name for name, caller in self._players.items()
        }
        late = set(calls.values())
        left = list(calls)
        deadline = time.monotonic() + grace_s + update_s + _HOLD_SLACK_S
        while left and time.monotonic() < deadline:
            done = first_done(left, min(1.0, grace_s + update_s), all_of_them=True)
            for call in done:
                left.remove(call)
                if outcome(call):  # or it has died; `collect` sees it
                    late.discard(calls[call])
            if left and not look():
                break
        return sorted(late)

    def release(self) -> None:
        """Lets all environments go on."""
        for caller in self._players.values():
            caller.call("release")
        self._let_begin()

    def _let_begin(self) -> None:
        self._is_held = False
        for name in self._waiting_to_play:
            self._run(name)
        self._waiting_to_play.clear()

    @property
    def _players(self) -> Mapping[str, Caller]:
        """The processes that say what is played."""
        if not self._is_external:
            return self._callers
        return {} if self.gateway is None else {GATEWAY: self.gateway}

    def stop(self) -> None:
        """Ends training, and all processes after the step they are in; again it does nothing.

        External simulations, and the gateway, may go on with evaluations until `end`.
        """
        if self._is_external:
            self._stop_gateway()
            return
        self._is_playing = False
        callers, self._callers = self._callers, {}
        playing, self._playing = self._playing, {}
        for caller in callers.values():
            caller.call("stop")
        first_done(list(playing), _STOP_TIMEOUT_S, all_of_them=True)
        for name, answer in self._answers(ANSWER_S):
            if isinstance(answer, SimulationReport):
                self._take(name, answer)
        for name, caller in callers.items():
            self._take_last(name, caller)
            caller.kill()

    def _stop_gateway(self) -> None:
        if self._is_training_over or self.gateway is None:
            return
        self._is_training_over = True
        # Its `run` returns now, as it should.
        self._playing = {run: name for run, name in self._playing.items() if name != GATEWAY}
        self._waiting_to_play.discard(GATEWAY)
        # What ends with training is to be in the report.
        first_done([self.gateway.call("stop")], ANSWER_S)
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
            has_ended_well: whether the run has come to its end, or somebody has ended it.
        """
        if self.gateway is None:
            return
        gateway, self.gateway = self.gateway, None
        callers, self._callers, self._playing = self._callers, {}, {}
        ends = [gateway.call("end", story, has_ended_well)]
        patience_s = _STOP_TIMEOUT_S if has_ended_well else 0.0
        ends += [c.call("stop", patience_s) for name, c in callers.items() if name != GATEWAY]
        first_done(ends, 2 * _STOP_TIMEOUT_S, all_of_them=True)
        for caller in (gateway, *callers.values()):
            caller.kill()

    def _take(self, name: str, report: SimulationReport) -> None:
        self.num_episodes_begun[name] = report.num_episodes_begun
        self._grants.note(name, report.num_env_steps)
        if name == GATEWAY:
            self._num_episodes = report.num_over
        super()._take(name, report)
