"""Starts, limits, pauses, watches and ends the simulation processes of a run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from muxrl.client.adapters.factory import fill_in
from muxrl.orchestrator.config.checks import EXTERNAL
from muxrl.orchestrator.doing import doing
from muxrl.orchestrator.errors import Outdated, ProcessEnded, Silent
from muxrl.orchestrator.supervise.command_process import CommandProcess
from muxrl.orchestrator.supervise.episodes import ServerAddress
from muxrl.orchestrator.supervise.event_loop import first_of
from muxrl.orchestrator.supervise.gateway_process import GATEWAY, GatewayProcess
from muxrl.orchestrator.supervise.grants import Grants
from muxrl.orchestrator.supervise.life import ANSWER_S, Life, Supervisor
from muxrl.orchestrator.supervise.restarts import Quota
from muxrl.orchestrator.supervise.simulation_process import SimulationProcess, SimulationReport
from muxrl.orchestrator.supervise.worker import Caller

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 10.0
_HOLD_SLACK_S = 5.0
"""Added to timeouts of `hold`, for the call and its answer on a busy machine."""
_SKIPPED_SEEDS = 10_000
"""How many seeds are skipped after a loss: more than a process uses between two reports."""


class _Played(Life[SimulationReport]):
    """A process that plays episodes, or through which they are played, and that can be held.

    Args:
        name: of the process.
        all_of_them: the simulations of the run.
    """

    def __init__(self, name: str, all_of_them: Simulations) -> None:
        self._all = all_of_them
        self._config = all_of_them.config
        simulation, timeouts = self._config.simulation, self._config.timeouts
        super().__init__(
            name,
            all_of_them.supervisor,
            Quota(simulation.restarts, "simulation.restarts"),
            timeouts.start_s + timeouts.make_env_s * simulation.num_envs_per_process,
        )
        self.running: asyncio.Future[Any] | None = None
        """The answer of the process's call of `run`."""
        self.prefix: str | None = None
        """Prefix of its episodes' ids (None: unknown); see `Supervisor.on_restart`."""

    async def _run(self) -> None:
        """Calls `run` in the process, and waits until it ends."""
        self.running = self.call("run")
        await asyncio.shield(self.running)

    async def _work(self) -> None:
        await self._all.may_play.wait()  # not before the others are released, if they are held
        plays: list[Awaitable[Any]] = [self._run()]
        if self._all.is_limited:
            plays.append(self._all.grants.serve(self.name, self._allow))
        await first_of(*plays)
        raise Silent("ended by itself, without an episode that it played")

    async def _allow(self, num_env_steps: int) -> None:
        try:
            await self.call("allow", num_env_steps)
        except ProcessEnded:
            raise
        except Exception as error:  # else all others would wait for this one
            raise Silent(f"cannot continue: {type(error).__name__}: {error}") from error

    def _receive(self, report: SimulationReport) -> None:
        self._all.receive(self.name, report)

    async def _leave(self, error: Exception) -> None:
        # Simulations fail when a server has died: if the run ends, it reports the cause.
        await self._all.notice_deaths()
        self._all.last_loss = str(self.failure(error))
        if not isinstance(error, Silent | ProcessEnded):  # it has raised, and still answers
            await self.receive_last()

    def _again(self) -> str:
        self._supervisor.on_restart(self.name, self.prefix)
        return "with the next seeds"


class _Simulation(_Played):
    """A process with environments that muxrl makes."""

    def _launch(self) -> Caller:
        number = int(self.name.rpartition("-")[2])
        # Not just the name, which the process has again after a restart.
        self.prefix = f"{self.name}-{uuid.uuid4().hex[:8]}-"
        return self._start_process(
            SimulationProcess,
            self._config,
            number,
            self._all.num_episodes_begun.get(self.name, 0),
            self.prefix,
            self._all.is_limited,
            self._all.parameters,
            (self._supervisor.folder.episodes / self.name).absolute(),
        )

    async def _work(self) -> None:
        await self.call("connect", self._all.servers)
        await super()._work()

    async def _leave(self, error: Exception) -> None:
        await super()._leave(error)
        if isinstance(error, Silent | ProcessEnded):
            # It is unknown what it has begun since its last report, and no seed may be used twice.
            begun = self._all.num_episodes_begun.get(self.name, 0) + _SKIPPED_SEEDS
            self._all.num_episodes_begun[self.name] = begun

    async def stop(self) -> None:
        """Ends the process after its current step."""
        self.end()
        if self.caller is None:
            return
        self.send("stop")
        if self.running is not None:
            await asyncio.wait([self.running], timeout=_STOP_TIMEOUT_S)
        await self.report(ANSWER_S, is_new=False)
        await self.receive_last()
        self.kill()


class _Gateway(_Played):
    """The gateway's process, through which external simulations play."""

    address = ""

    @property
    def who(self) -> str:
        """See `Life`."""
        return "the gateway"

    def _launch(self) -> Caller:
        return self._start_process(GatewayProcess, self._config, self._all.servers)

    async def _start(self) -> None:
        port = self._config.simulation.gateway.port
        if self.address:  # a restart: simulations look for it at the old address
            port = int(self.address.rpartition(":")[2])
        how = self._all.parameters, port, self._quota.num_taken, self._all.is_limited
        self.address = await self.call("start", *how)
        if self._all.is_training_over:
            self.send("stop")
        elif self._all.is_held:
            self.send("hold", 0.0, 0.0)

    async def _work(self) -> None:
        try:
            if not self._all.is_training_over:
                await super()._work()
        except Silent:
            if not self._all.is_training_over:
                raise
        await asyncio.Event().wait()  # the gateway may continue with evaluations

    def _again(self) -> str:
        self._supervisor.on_restart(self.name, "")
        return f"at {self.address}"


class _Program(_Played):
    """A program of the user (`simulation.command`) that plays through the gateway."""

    def _launch(self) -> Caller:
        command = fill_in(self._config.simulation.command, int(self.name.rpartition("-")[2]))
        assert self._all.gateway is not None
        gateway = f"http://{self._all.gateway.address}"
        parts = [str(part).replace("{gateway}", gateway) for part in command]
        return self._start_process(CommandProcess, parts)

    async def _work(self) -> None:
        while True:
            await self._all.may_play.wait()
            before = self._all.num_episodes
            await self._run()
            gateway = self._all.gateway
            assert gateway is not None
            await gateway.receive_last()
            # A program may play one episode and end. The gateway does not know who played which.
            if self._all.num_episodes == before:  # fewer: the gateway was started again
                raise Silent("ended by itself, without an episode that it played")


class Simulations:
    """The simulation processes of one run, or the gateway if simulations are external.

    A lost process is started again, as `simulation.restarts` allows, with the seeds that follow.

    Args:
        supervisor: the run's supervisor.
        on_report: called with each simulation's name and report.
        notice_deaths: looks after servers that have died; see `Servers.notice_deaths`.
        num_episodes_begun: by process, of a run that is resumed.
        parameters: see `set_parameters`.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        on_report: Callable[[str, SimulationReport], None],
        notice_deaths: Callable[[], Awaitable[None]],
        num_episodes_begun: Mapping[str, int] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.supervisor, self.config = supervisor, supervisor.config
        self.notice_deaths, self._on_report = notice_deaths, on_report
        self.num_episodes_begun = dict(num_episodes_begun or {})
        """By process: how many episodes it has begun, as of its last report."""
        self.last_loss = ""
        """A sentence on which process was lost last, and why; "" if none was."""
        self.parameters = parameters or {}
        self.servers: Mapping[str, ServerAddress] = {}
        simulation = self.config.simulation
        names = [f"simulation-{i}" for i in range(simulation.num_processes)]
        is_external = simulation.env == EXTERNAL
        self.gateway: _Gateway | None = _Gateway(GATEWAY, self) if is_external else None
        """The gateway, until `end`; None: simulations are not external."""
        self._simulations = [] if is_external else [_Simulation(name, self) for name in names]
        programs = names if is_external and simulation.command else []
        self._programs = [_Program(name, self) for name in programs]
        self.num_episodes = 0
        """How many episodes are over at the gateway."""
        points = [self.config.stop.env_steps, self.config.checkpoint.keep_every_env_steps]
        if not is_external:  # external ones finish their episodes before they evaluate
            points.append(self.config.evaluation.interval_env_steps)
        self.is_limited = any(point is not None for point in points)
        """Whether processes play no more env steps than `allow` gives them."""
        self.grants = Grants(simulation.num_envs_per_process)
        self.may_play = asyncio.Event()
        """Set while processes may begin to play."""
        self.is_held = self.is_training_over = False
        self._is_playing = False

    def prepare(self) -> None:
        """Starts processes early, so that they make their environments while servers start.

        At most as many as there are processors, so that the servers start no later for it.
        """
        for one in self._simulations[: os.cpu_count()]:
            one.prepare()

    async def start(self, servers: Mapping[str, ServerAddress]) -> None:
        """Starts all processes that have not been prepared, and has all connect to the servers."""
        self.servers = servers
        if self.gateway is not None:
            doing("starting the gateway")
            self.gateway.begin()
            await self.gateway.is_up.wait()  # programs look for it once they start
        for one in (*self._simulations, *self._programs):
            one.begin()

    @property
    def _players(self) -> list[_Played]:
        """The processes whose reports say what was played."""
        return [*self._simulations] if self.gateway is None else [self.gateway]

    def _up(self) -> Iterator[_Played]:
        return (one for one in self._players if one.is_up.is_set())

    def play(self) -> None:
        """Lets all processes play training episodes from now on."""
        self._is_playing = True
        self._let_begin()

    def _let_begin(self) -> None:
        if self._is_playing:
            self.may_play.set()

    def allow(self, num_env_steps: int) -> None:
        """Allows all processes together so many env steps, counted from their newest reports.

        They share these, and pause once all are used up; see `is_used_up`.
        """
        self.grants.extend(num_env_steps)

    def set_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Gives these parameters to episodes that begin from now on; see `EnvLoop.parameters`."""
        if parameters != self.parameters:
            self.parameters = parameters
            for one in self._up():  # others get them when they start
                one.send("set_parameters", parameters)

    def move(self, server_id: str, address: str) -> None:
        """Tells all processes where a server listens from now on.

        A process that has not reported yet may still wait for the old address: it is started again.
        """
        for one in self._up():
            if one.has_reported:
                one.send("move", server_id, address)
            else:
                one.lose_soon(Outdated(f"looked for server {server_id!r} at its former address"))

    @property
    def is_used_up(self) -> bool:
        """Whether all processes pause, since they have played all that they were allowed."""
        return self.is_limited and self.grants.used_up.is_set()

    async def rest(self, time_s: float) -> None:
        """Waits for `time_s`, or less if all processes use up what they were allowed before."""
        used_up = self.grants.used_up if self.is_limited else asyncio.Event()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(time_s):
                await used_up.wait()

    async def report(self, wait_s: float) -> None:
        """Receives the reports of all processes that answer in time; see `Life.report`."""
        of_all = (*self._players, *self._programs)
        await asyncio.gather(*(one.report(wait_s) for one in of_all))

    async def report_now(self) -> None:
        """Receives reports as of this moment from all processes that answer soon."""
        await asyncio.gather(*(one.report_now() for one in self._players))

    async def hold(self, grace_s: float, update_s: float) -> list[str]:
        """Makes all environments pause; `release` lets them continue.

        A process that is started again meanwhile also waits for `release`.

        Args:
            grace_s: how long they may go on to finish their episodes.
            update_s: how much longer to wait for the end of a step, in which a server may learn.

        Returns:
            The processes whose environments have not paused in time, without lost processes.
        """
        self.is_held = True
        self.may_play.clear()
        holds = {one.name: one.call("hold", grace_s, update_s) for one in self._up()}
        if holds:
            await asyncio.wait(holds.values(), timeout=grace_s + update_s + _HOLD_SLACK_S)
        # A process that has died does not play, so it counts as paused.
        paused = (h.done() and (h.exception() is not None or h.result()) for h in holds.values())
        return sorted(name for name, is_paused in zip(holds, paused, strict=True) if not is_paused)

    def release(self) -> None:
        """Lets all environments continue."""
        self.is_held = False
        for one in self._up():
            one.send("release")
        self._let_begin()

    async def stop(self) -> None:
        """Ends training, and all processes after their current step; a second call does nothing.

        External simulations and the gateway may continue with evaluations until `end`.
        """
        await asyncio.gather(*(one.stop() for one in self._simulations))
        self._simulations = []
        gateway = self.gateway
        if gateway is None or self.is_training_over:
            return
        self.is_training_over = True
        if gateway.is_up.is_set():
            # First training ends, so that the last report has the episodes that end with it.
            await asyncio.wait([gateway.call("stop")], timeout=ANSWER_S)
            await gateway.receive_last()
        self.is_held = False
        self._let_begin()

    async def end(self, reason: str, *, has_ended_well: bool) -> None:
        """Ends the gateway, if there is one, and tells external simulations that the run is over.

        Args:
            reason: the text that they are sent.
            has_ended_well: whether the run has come to its end or was stopped, without a failure.
        """
        gateway, self.gateway = self.gateway, None
        if gateway is None:
            return
        patience_s = _STOP_TIMEOUT_S if has_ended_well else 0.0
        ends = [gateway.call("end", reason, has_ended_well)] if gateway.is_up.is_set() else []
        ends += [one.call("stop", patience_s) for one in self._programs if one.caller is not None]
        for one in (gateway, *self._programs):
            one.end()
        if ends:
            await asyncio.wait(ends, timeout=2 * _STOP_TIMEOUT_S)
        for one in (gateway, *self._programs):
            one.kill()

    def receive(self, name: str, report: SimulationReport) -> None:
        """Handles the report of a process."""
        self.num_episodes_begun[name] = report.num_episodes_begun
        self.grants.note(name, report.num_env_steps)
        if name == GATEWAY:
            self.num_episodes = report.num_over
        self._on_report(name, report)
