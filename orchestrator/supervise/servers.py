"""The server processes of a run: started together, saved, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs

from muxrl.orchestrator.config import Experiment
from muxrl.orchestrator.doing import doing
from muxrl.orchestrator.errors import CannotRecord, NotSaved, ProcessEnded, RunFailed, Silent
from muxrl.orchestrator.storage.checkpoints import (
    CheckpointFolder,
    Manifest,
    SavedServer,
    find_whole,
)
from muxrl.orchestrator.supervise.episodes import ServerAddress
from muxrl.orchestrator.supervise.event_loop import first_of
from muxrl.orchestrator.supervise.life import ANSWER_S, Life, Supervisor
from muxrl.orchestrator.supervise.own_server import OwnServer, with_token
from muxrl.orchestrator.supervise.restarts import Quota
from muxrl.orchestrator.supervise.server_process import COSTS, ServerProcess, Started
from muxrl.orchestrator.supervise.worker import Caller
from muxrl.protocol.messages import Status
from muxrl.protocol.run_messages import UNTRAINED, RunReport
from muxrl.servers.config import EXTERNAL, ServerPlan

logger = logging.getLogger(__name__)

_DEATH_NOTICE_S = 3.0
"""How long it may take to notice a server's death after a simulation has failed because of it."""
_SIGN_S = 1.0
"""Interval between requests for signs of life from a server whose call takes long."""


class Server(Life[RunReport]):
    """One server.

    Args:
        plan: of the server.
        supervisor: of the run.
        servers: of the run.
    """

    def __init__(self, plan: ServerPlan, supervisor: Supervisor, servers: Servers) -> None:
        config = supervisor.config.servers[plan.server_id]
        may_not = config.on_server_loss == "stop"
        restarts = replace(config.restarts, max=0) if may_not else config.restarts
        quota = Quota(restarts, f"servers.{plan.server_id}.restarts")
        super().__init__(plan.server_id, supervisor, quota)
        self.plan = self._first_plan = with_token(plan)
        """The plan with which the server was started last."""
        self.address = ServerAddress("", self.plan.token, plan.shadow)
        self.offers: frozenset[str] = frozenset()
        """The requests of a run that this server answers; see `COSTS`."""
        self.status: Status | None = None
        """The newest status; None: the server has not reported yet."""
        self._servers = servers
        self._pid = 0
        self._num_taken = 0
        """The newest iteration whose record has been received from the current process."""

    @property
    def who(self) -> str:
        """What messages call the server, with its process id once it listens."""
        pid = f" (pid {self._pid}, {self.plan.shown_algorithm})" if self._pid else ""
        return f"server {self.name!r}{pid}"

    def _launch(self) -> Caller:
        if self.plan.algorithm == EXTERNAL:
            # Less than `limited` allows, so that its own error, which says more, comes first.
            return self._start_process(OwnServer, self.plan, 0.9 * self._timeouts.start_s)
        return self._start_process(ServerProcess, self.plan, is_forked=True)

    async def _start(self) -> None:
        sources = self._servers.sources.get(self.name, ())
        sent = [await self._servers.of[source].pool_arguments() for source in sources]
        started: Started = await self.call("start", *sent)
        self._pid, self.offers, self.has_reported = started.pid, started.offers, True
        before, self.address.address = self.address.address, started.address
        if before and before != started.address:  # on another machine
            self._servers.note_move(self)
        if self._servers.has_finished:
            self.send("finish_training", self._timeouts.update_s)

    async def _work(self) -> None:
        sources = self._servers.sources.get(self.name, {}).items()
        await first_of(asyncio.Event().wait(), *(self._follow(*one) for one in sources))

    def _request(self) -> asyncio.Future[Any]:
        return self.call("report", self._num_taken)

    def _receive(self, report: RunReport) -> None:
        """Handles a report, without the records that were received before: the server sends them
        again after an interrupted call, or if two calls were under way at the same time."""
        self.status = report.status
        records = [r for r in report.records if r["iteration"] > self._num_taken]
        self._servers.on_report(self.name, structs.replace(report, records=records))
        if records:
            self._num_taken = records[-1]["iteration"]

    async def _leave(self, error: Exception) -> None:
        self._pid = self._num_taken = 0

    def _again(self) -> str:
        plan = replace(
            self._first_plan,
            port=int(self.address.address.rpartition(":")[2]),
            resume_from="",
            num_restarts=self._quota.num_taken,
        )
        saved, _ = find_whole(CheckpointFolder(self._supervisor.folder.checkpoints), self.name)
        reason, manifest = "from scratch: it has no checkpoint", None
        if saved is not None:
            place, manifest = saved
            reason = f"from its checkpoint at {manifest.env_steps:,} env steps"
            if manifest.servers[self.name].files:
                plan = replace(plan, resume_from=str(place / self.name), initialize_from="")
        self.plan = plan
        self._servers.on_restart(self.name, manifest)
        return reason

    # --- pools --------------------------------------------------------------------------

    async def pool_arguments(self, *, is_live: bool = True) -> tuple[Any, ...]:
        """Returns the arguments of `PoolPolicies.sync` that bring a pool this server's policies.

        Args:
            is_live: whether its current weights are wanted, besides its snapshots.
        """
        live = None
        if is_live and self.caller is not None:
            # If this server is just being lost, the pool gets its weights later.
            with contextlib.suppress(Exception):
                live = await self.call("live")
        return self.name, self._snapshots(), live

    def _snapshots(self) -> dict[int, str]:
        folder = CheckpointFolder(self._supervisor.folder.checkpoints)
        found = folder.snapshots(self._supervisor.config.checkpoint.keep_every_env_steps)
        return {n: str(folder.path / str(n) / self.name) for n in found}

    async def _follow(self, source: str, needs_live: bool) -> None:
        """Sends this pool the new weights and snapshots of the server `source`, until cancelled."""
        server, sent = self._servers.of[source], None
        while True:
            await asyncio.sleep(self._supervisor.config.metrics_interval_s)
            if not server.is_up.is_set() or server.status is None:
                continue
            snapshots = server._snapshots()
            is_live = needs_live or not snapshots
            now = is_live and server.status.weights_seq_no, *snapshots
            if now == sent:
                continue
            sent = now
            try:
                await self.call("sync", *await server.pool_arguments(is_live=is_live))
            except ProcessEnded:
                raise
            except Exception as problem:  # noqa: BLE001  # the next attempt may succeed
                what = "pool %r has not received the new policies of server %r: %s"
                logger.warning(what, self.name, source, problem)

    # --- saving, and the end of learning ------------------------------------------------

    async def save(self, draft: Path, update_s: float) -> SavedServer:
        """Makes the server write its checkpoint.

        Args:
            draft: the folder in which the server makes a folder of its own.
            update_s: how long it may wait for the end of an update.

        Raises:
            NotSaved: the server did not write it, or was lost.
        """
        asked = draft / self.name, update_s, self._num_taken
        timeout_s = update_s + self._timeouts.save_s
        try:
            saved, report = await self._patiently(timeout_s, "save", *asked)
        except (ProcessEnded, Silent) as error:
            raise NotSaved(f"no checkpoint: server {self.name!r} was lost") from error
        except TimeoutError:
            why = f"it was not written within {timeout_s:g} s (timeouts.save_s)"
            raise NotSaved(f"no checkpoint of server {self.name!r}: {why}") from None
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise NotSaved(f"no checkpoint of server {self.name!r}: {why}") from error
        self._receive(report)
        written: SavedServer = saved
        return written

    async def finish_training(self, update_s: float) -> None:
        """Makes the server end learning. If it is lost meanwhile, `is_up` is cleared.

        Args:
            update_s: how long it may wait for the end of an update.

        Raises:
            RunFailed: the server failed to end learning, or was too slow.
        """
        asked = update_s, self._num_taken
        timeout_s = update_s + self._timeouts.report_s
        try:
            report = await self._patiently(timeout_s, "finish_training", *asked)
        except (ProcessEnded, Silent):
            return
        except TimeoutError:
            hint = "(timeouts.update_s sets how long it may take)"
            raise self.failure(Silent(f"did not answer for {timeout_s:g} s {hint}")) from None
        except Exception as error:
            raise self.failure(error) from error
        self._receive(report)

    async def _patiently(self, timeout_s: float, method: str, *arguments: Any) -> Any:
        """Calls a method and waits for its answer as long as the server gives other signs of life.

        Its status is that sign: a report might hold records from after the checkpoint.

        Raises:
            ProcessEnded, Silent: the server is lost.
            TimeoutError: it has not answered in time.
        """
        caller, call = self.caller, self.call(method, *arguments)
        try:
            async with asyncio.timeout(timeout_s):
                return await first_of(call, self._signs_of_life())
        except (ProcessEnded, Silent) as error:
            await self.lose(error, caller)
            raise

    async def _signs_of_life(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._timeouts.report_s):
                    await self.call("status")
            except TimeoutError:
                raise Silent(f"did not answer for {self._timeouts.report_s:g} s") from None
            except ProcessEnded:
                raise
            except Exception:  # it has answered, so it lives
                logger.debug("no status", exc_info=True)
            await asyncio.sleep(_SIGN_S)

    async def notice_death(self) -> None:
        """Declares the server lost if its process has died and this was not noticed yet."""
        if not self.is_up.is_set():
            return
        caller = self.caller
        try:
            async with asyncio.timeout(_DEATH_NOTICE_S):
                await self.call("status")
        except ProcessEnded as error:
            await self.lose(error, caller)
        except Exception:  # it lives, and is busy
            logger.debug("no status", exc_info=True)

    async def stop(self) -> None:
        """Ends the server, whatever state it is in; not even a full disk keeps it alive."""
        self.end()
        if self.caller is None:
            return
        stop_s = self._timeouts.stop_s
        if self.is_up.is_set():
            with contextlib.suppress(CannotRecord):
                await self.report(ANSWER_S, is_new=False)
            with contextlib.suppress(Exception):
                async with asyncio.timeout(stop_s + 5.0):
                    self._receive(await self.call("finish_training", stop_s, self._num_taken))
            await asyncio.wait([self.call("stop")], timeout=stop_s)
        self.kill()


class Servers:
    """The servers of one run; a lost server is started again, as `servers.X.restarts` allows.

    Args:
        experiment: the resolved experiment.
        supervisor: the run's supervisor.
        on_report: called with each server's id and report, while the run lasts and at its end.
        on_restart: called when a server is lost and started again, with its id and the manifest of
            the checkpoint from which it continues; None: from scratch.
        on_move: called with the id and new address of a server that listens elsewhere now.
    """

    def __init__(
        self,
        experiment: Experiment,
        supervisor: Supervisor,
        on_report: Callable[[str, RunReport], None],
        on_restart: Callable[[str, Manifest | None], None],
        on_move: Callable[[str, str], None] = lambda server_id, address: None,
    ) -> None:
        self.on_report, self.on_restart, self._on_move = on_report, on_restart, on_move
        self.sources = experiment.pool_sources
        self.has_finished = False
        """Whether learning is over."""
        self._is_paused = False
        self._supervisor = supervisor
        self.of = {s: Server(plan, supervisor, self) for s, plan in experiment.servers.items()}
        """By server id, in the order of the config."""

    async def start(self) -> None:
        """Starts all servers and waits until they listen."""
        for server_id in sorted(self.of, key=self.sources.__contains__):  # sources first
            self.of[server_id].begin()
        listening = [server.is_up.wait() for server in self.of.values()]
        for num, one in enumerate(asyncio.as_completed(listening)):
            doing("starting servers", f"{num} of {len(listening)} listen")
            await one
        self._publish()

    def note_move(self, server: Server) -> None:
        """Publishes the new address of a server that listens elsewhere now."""
        self._publish()
        self._on_move(server.name, server.address.address)

    def _publish(self) -> None:
        addresses = {s: address.address for s, address in self.addresses.items()}
        self._supervisor.folder.write_addresses(addresses)

    @property
    def addresses(self) -> dict[str, ServerAddress]:
        """By server id: where the server listens."""
        return {server_id: server.address for server_id, server in self.of.items()}

    @property
    def addresses_text(self) -> str:
        """Which server listens where, as text for people."""
        return ", ".join(
            f"{s} ({server.plan.shown_algorithm}) on {server.address.address}"
            for s, server in self.of.items()
        )

    @property
    def lacking(self) -> Iterator[str]:
        """Sentences on what servers do not offer, one for each server and request."""
        for server_id, server in self.of.items():
            for name, cost in COSTS.items():
                is_wanted = name != UNTRAINED or server.plan.keeps_untrained
                if is_wanted and name not in server.offers:
                    yield f"server {server_id!r} does not offer {name!r}: {cost}"

    @property
    def statuses(self) -> dict[str, Status]:
        """By server id: the newest status, of servers that have reported."""
        return {s: server.status for s, server in self.of.items() if server.status is not None}

    @property
    def restarting(self) -> list[str]:
        """Ids of the servers that were lost and do not listen again yet."""
        return [server_id for server_id, server in self.of.items() if not server.is_up.is_set()]

    async def report(self, wait_s: float, *, is_new: bool = True) -> None:
        """Receives the reports of all servers that answer in time; see `Life.report`.

        Raises:
            RunFailed: the training of a server has failed.
        """
        await asyncio.gather(*(s.report(wait_s, is_new=is_new) for s in self.of.values()))
        self._check_training()

    async def report_now(self) -> None:
        """Receives reports as of this moment from all servers that answer soon."""
        await asyncio.gather(*(server.report_now() for server in self.of.values()))
        self._check_training()

    def _check_training(self) -> None:
        for server_id, status in self.statuses.items():
            # While the run ends, perhaps for this very problem, it is not raised again.
            if status.problem and self._supervisor.may_restart:
                log = self._supervisor.folder.log(server_id)
                raise RunFailed(f"server {server_id!r}: {status.problem}; its log: {log}")

    async def any_down(self) -> None:
        """Waits until any server is lost."""
        await first_of(*(server.down() for server in self.of.values()))

    async def notice_deaths(self) -> None:
        """Declares servers lost whose processes have died, if this was not noticed yet."""
        await asyncio.gather(*(server.notice_death() for server in self.of.values()))

    def abort_episodes(self, prefix: str) -> None:
        """Makes all servers close the episodes whose ids begin with `prefix`."""
        for server in self.of.values():
            if server.is_up.is_set():
                server.send("abort_episodes", prefix)

    def set_paused(self, is_paused: bool) -> None:
        """Tells all servers whether the simulations pause: then no training episode is idle."""
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            for server in self.of.values():
                if server.is_up.is_set():  # a server that starts later has no old episodes
                    server.send("set_paused", is_paused)

    async def save(self, draft: Path, update_s: float) -> dict[str, SavedServer]:
        """Makes all servers write their checkpoints at the same time, and receives their reports.

        Args:
            draft: the folder in which each server makes a folder of its own.
            update_s: how long to wait for the end of an update.

        Raises:
            NotSaved: a server did not write its checkpoint, or was lost.
            OSError: files that came from another machine cannot be written.
        """
        self._check_all_listen()
        have_answered = [s.report(ANSWER_S, is_new=False) for s in self.of.values()]
        for server, has_reported in zip(self.of, await asyncio.gather(*have_answered), strict=True):
            if not has_reported:  # its iterations would be recorded after the checkpoint
                raise NotSaved(f"no checkpoint: server {server!r} did not report in time")
        self._check_all_listen()
        saves = [server.save(draft, update_s) for server in self.of.values()]
        found: list[Any] = await asyncio.gather(*saves, return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, NotSaved):
                raise one
        if problems := [str(one) for one in found if isinstance(one, NotSaved)]:
            raise NotSaved("; ".join(problems))
        return dict(zip(self.of, found, strict=True))

    def _check_all_listen(self) -> None:
        if lost := self.restarting:
            listed = ", ".join(lost)
            raise NotSaved(f"no checkpoint is written while {listed} is being started again")

    async def finish_training(self, update_s: float) -> None:
        """Ends learning; the servers continue acting with their last weights.

        Args:
            update_s: how long to wait for the end of an update.

        Raises:
            NotSaved: a server was lost.
            RunFailed: a server failed to end learning, or its training failed.
        """
        await self.report(ANSWER_S, is_new=False)
        self._check_all_listen()
        await asyncio.gather(*(server.finish_training(update_s) for server in self.of.values()))
        self._check_training()
        self._check_all_listen()
        self.has_finished = True

    def kill(self) -> None:
        """Ends all servers at once; nothing is saved."""
        for server in self.of.values():
            server.end()
            server.kill()

    async def stop(self) -> None:
        """Ends all servers, whatever state they are in."""
        await asyncio.gather(*(server.stop() for server in self.of.values()))
