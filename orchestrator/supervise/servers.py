"""The server processes of a run: started together, saved, and ended."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs

from muxrl.orchestrator.config import Experiment
from muxrl.orchestrator.errors import CannotRecord, NotSaved, ProcessEnded, RunFailed, Silent
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.storage.checkpoints import (
    CheckpointFolder,
    Manifest,
    SavedServer,
    find_whole,
)
from muxrl.orchestrator.supervise.episodes import ServerAddress
from muxrl.orchestrator.supervise.local import Workers
from muxrl.orchestrator.supervise.own_server import OwnServerProcess, with_token
from muxrl.orchestrator.supervise.restarts import Quota
from muxrl.orchestrator.supervise.server_process import (
    COSTS,
    ServerProcess,
    ServerReport,
    Started,
)
from muxrl.orchestrator.supervise.supervision import ANSWER_S, Supervision
from muxrl.orchestrator.supervise.worker import Caller, after, first_done, outcome
from muxrl.protocol.messages import Status
from muxrl.protocol.run_messages import UNTRAINED
from muxrl.servers.config import EXTERNAL, ServerPlan

logger = logging.getLogger(__name__)

_DEATH_NOTICE_S = 3.0
"""How long it may take to learn of a server's death after a simulation has felt it."""


class Servers(Supervision[ServerReport]):
    """The servers of one run; one that is lost is started again, as `servers.X.restarts` allows.

    Args:
        experiment: resolved.
        folder: the run's directory.
        on_report: called with each server's id and report, while the run goes on and at its end.
        on_restart: called when a server is lost and started again, with its id and the manifest of
            the checkpoint from which it goes on; None: from scratch.
        on_move: called with the id and address of one that listens elsewhere now.
    """

    _kind = "servers"

    def __init__(
        self,
        experiment: Experiment,
        folder: RunDirectory,
        on_report: Callable[[str, ServerReport], None],
        on_restart: Callable[[str, Manifest | None], None],
        on_move: Callable[[str, str], None] = lambda server_id, address: None,
    ) -> None:
        quotas = {
            server_id: Quota(
                server.restarts
                if server.on_server_loss != "stop"
                else replace(server.restarts, max=0),
                f"servers.{server_id}.restarts",
            )
            for server_id, server in experiment.config.servers.items()
        }
        super().__init__(experiment.config, folder, quotas, on_report, on_restart)
        self.addresses: dict[str, ServerAddress] = {}
        self.statuses: dict[str, Status] = {}
        """The newest one of each server that has reported."""
        self.offers: dict[str, frozenset[str]] = {}
        """What each server answers of what a run asks; see `COSTS`."""
        self._experiment = experiment
        self._on_move = on_move
        self._first_plans: dict[str, ServerPlan] = {}
        self._plans: dict[str, ServerPlan] = {}
        """Of each server as it was started last."""
        self._has_finished = False
        self._sources = experiment.pool_sources
        self._pids: dict[str, int] = {}
        self._brought: dict[tuple[str, str], tuple[Any, Future[Any]]] = {}
        """To a pool of a server: what its members are, and the call that brings it."""
        self._taken: dict[str, int] = {}
        """The newest iteration of each server whose record has been taken in."""

    def start(self, workers: Workers) -> None:
        """Starts all servers and waits until they listen.

        Raises:
            RunFailed: one did not start; at once, however long others take.
        """
        self._workers = workers
        self._first_plans = {s: with_token(p) for s, p in self._experiment.servers.items()}
        self._plans = dict(self._first_plans)
        for server_id in sorted(self._plans, key=self._sources.__contains__):  # sources first
            self._start(server_id)
        self._wait_until_they_listen()
        self.addresses = {server_id: self.addresses[server_id] for server_id in self._plans}
        self._publish()

    def _publish(self) -> None:
        self._folder.write_addresses({s: a.address for s, a in self.addresses.items()})

    def _start(self, server_id: str) -> None:
        plan = self._plans[server_id]
        is_own = plan.algorithm == EXTERNAL
        caller = self._launch(
            server_id,
            OwnServerProcess if is_own else ServerProcess,
            plan,
            *([self._timeouts.start_s] if is_own else []),
            is_forked=not is_own,
        )
        news = [self._news(source) for source in self._sources.get(server_id, ())]
        self._await(server_id, after(news, lambda brought: caller.call("start", *brought)))

    def _listens(self, server_id: str, answer: Started) -> None:
        self._pids[server_id] = answer.pid
        self._has_reported.add(server_id)
        token = self._plans[server_id].token
        old = self.addresses.setdefault(server_id, ServerAddress(answer.address, token))
        if old.address != answer.address:  # on another machine
            old.address = answer.address
            self._publish()
            self._on_move(server_id, answer.address)
        self.offers[server_id] = answer.offers
        if self._has_finished:
            self._callers[server_id].call("finish_training", self._timeouts.update_s)

    @property
    def addresses_text(self) -> str:
        """Which server listens where, for people."""
        return ", ".join(
            f"{s} ({self._experiment.servers[s].shown_algorithm}) on {a.address}"
            for s, a in self.addresses.items()
        )

    @property
    def lacking(self) -> Iterator[str]:
        """Yields a sentence for each thing that a server does not offer."""
        for server_id, offers in self.offers.items():
            for name, cost in COSTS.items():
                is_wanted = name != UNTRAINED or self._plans[server_id].keeps_untrained
                if is_wanted and name not in offers:
                    yield f"server {server_id!r} does not offer {name!r}: {cost}"

    @property
    def _listening(self) -> dict[str, Caller]:
        return {s: caller for s, caller in self._callers.items() if s not in self._starting}

    def _request(self, server_id: str) -> Future[Any]:
        return self._callers[server_id].call("report", self._taken.get(server_id, 0))

    def collect(self, wait_s: float) -> None:
        """As of every kind; a server whose training has failed ends the run.

        Raises:
            RunFailed: that, or a server was lost once too often.
        """
        super().collect(wait_s)
        self._check_training()
        self._bring()

    # --- pools --------------------------------------------------------------------------

    def _news(self, source: str, *, is_live: bool = True) -> Future[tuple[Any, ...]]:
        """Returns what a pool is told of a server, once it has said it; see `PoolPolicies.take`."""
        found: Future[tuple[Any, ...]] = Future()
        snapshots = self._snapshots(source)
        live = self._callers[source].call("live") if is_live and source in self._callers else None

        def tell(done: Future[Any] | None) -> None:
            # Of a source that is lost just now, the pool hears again.
            said = None if done is None or done.exception() else done.result()
            found.set_result((source, snapshots, said))

        if live is None:
            tell(None)
        else:
            live.add_done_callback(tell)
        return found

    def _snapshots(self, source: str) -> dict[int, str]:
        folder = CheckpointFolder(self._folder.checkpoints)
        found = folder.snapshots(self._config.checkpoint.keep_every_env_steps)
        return {n: str(folder.path / str(n) / source) for n in found}

    def _bring(self) -> None:
        """Brings pools the newest weights and snapshots of their servers, if there are newer."""
        for pool, sources in self._sources.items():
            for source, needs_live in sources.items():
                if not {pool, source} <= self._listening.keys() or source not in self.statuses:
                    continue
                snapshots = self._snapshots(source)
                is_live = needs_live or not snapshots
                now = is_live and self.statuses[source].weights_seq_no, *snapshots
                before, call = self._brought.get((pool, source), (None, None))
                if now != before and (call is None or call.done()):
                    if call is not None and isinstance(problem := outcome(call), Exception):
                        logger.warning("pool %r was not brought %r: %s", pool, source, problem)
                    taker = self._callers[pool]
                    news = self._news(source, is_live=is_live)
                    took = after([news], lambda told, taker=taker: taker.call("take", *told[0]))  # type: ignore[misc]
                    self._brought[pool, source] = now, took

    def _check_training(self) -> None:
        for server_id, status in self.statuses.items():
            if status.problem and self.may_restart:  # else the run is ending, of that perhaps
                log = self._folder.log(server_id)
                raise RunFailed(f"server {server_id!r}: {status.problem}; its log: {log}")

    @property
    def is_waited_for(self) -> bool:
        """Whether simulations would have to wait for an update of any of them."""
        return any(status.is_waiting_for_learner for status in self.statuses.values())

    # --- one is lost --------------------------------------------------------------------

    def _leave(self, server_id: str, caller: Caller, error: Exception) -> None:
        self._pids.pop(server_id, None)
        self._taken.pop(server_id, None)
        for pair in [pair for pair in self._brought if server_id in pair]:
            del self._brought[pair]

    def _again(self, server_id: str) -> str:
        plan = replace(
            self._first_plans[server_id],
            port=int(self.addresses[server_id].address.rpartition(":")[2]),
            resume_from="",
            num_restarts=self._quotas[server_id].num_taken,
        )
        saved, _ = find_whole(CheckpointFolder(self._folder.checkpoints), server_id)
        story = "from scratch: there is no checkpoint of it"
        self._on_loss[server_id] = None
        if saved is not None:
            place, manifest = saved
            story = f"from its checkpoint at {manifest.env_steps:,} env steps"
            self._on_loss[server_id] = manifest
            if manifest.servers[server_id].files:
                plan = replace(plan, resume_from=str(place / server_id), initialize_from="")
        self._plans[server_id] = plan
        return story

    def notice_deaths(self) -> None:
        """Looks after servers that have just died, which is seen only now perhaps.

        Raises:
            RunFailed: one may not be started again, or was lost for good before.
        """
        if self._lost_for_good is not None:
            raise self._lost_for_good
        deadline = time.monotonic() + _DEATH_NOTICE_S
        for server_id, caller in self._listening.items():
            left_s = max(0.1, deadline - time.monotonic())
            with contextlib.suppress(TimeoutError):  # it is busy
                if isinstance(answer := outcome(caller.call("status"), left_s), ProcessEnded):
                    self._lose(server_id, answer)

    def abort_episodes(self, prefix: str) -> None:
        """Has all servers close the episodes whose ids begin so."""
        for caller in self._listening.values():
            caller.call("abort_episodes", prefix)

    # --- what they have learned ---------------------------------------------------------

    def save(self, draft: Path, update_s: float) -> dict[str, SavedServer]:
        """Has all servers write their checkpoints at the same time, and takes in their reports.

        Args:
            draft: the folder in which each makes one of its own.
            update_s: for how long to wait for the end of an update.

        Raises:
            NotSaved: one did not write it, or was lost.
            OSError: what another machine has sent cannot be written.
            RunFailed: one was lost once too often.
        """

        self._check_all_listen()
        self.collect(ANSWER_S)
        if self._asked:  # its iterations would be written after the checkpoint
            raise NotSaved(f"no checkpoint: server {next(iter(self._asked))!r} has not reported")
        self._check_all_listen()
        timeout_s = update_s + self._timeouts.save_s
        saves = {
            caller.call("save", draft / s, update_s, self._taken.get(s, 0)): s
            for s, caller in self._callers.items()
        }
        saved: dict[str, SavedServer] = {}
        problems: list[str] = []
        for save in self._until_done(saves, timeout_s):
            server_id = saves[save]
            if isinstance(answer := outcome(save), ProcessEnded):
                self._lose(server_id, answer)
                problems.append(f"no checkpoint: server {server_id!r} was lost")
            elif isinstance(answer, Exception):
                why = f"{type(answer).__name__}: {answer}"
                problems.append(f"no checkpoint of server {server_id!r}: {why}")
            else:
                saved[server_id], report = answer
                self._take(server_id, report)
        for server_id in saves.values():
            if server_id not in saved and not problems:
                why = f"it was not written within {timeout_s:g} s (timeouts.save_s)"
                problems.append(f"no checkpoint of server {server_id!r}: {why}")
        if problems:
            raise NotSaved("; ".join(problems))
        return saved

    def _until_done(
        self, calls: Mapping[Future[Any], str], timeout_s: float
    ) -> Iterator[Future[Any]]:
        """Yields calls of servers when they are done; a server that is silent is killed.

        For reports would be too early: they are of the time after a checkpoint.
        """
        deadline = time.monotonic() + timeout_s
        signs = {
            server_id: (self._callers[server_id].call("status"), time.monotonic())
            for server_id in calls.values()
        }
        left = list(calls)
        while left and time.monotonic() < deadline:
            for call in first_done(left, 1.0):
                left.remove(call)
                yield call
            for server_id in {calls[call] for call in left}:
                sign, asked_at = signs[server_id]
                if sign.done():
                    signs[server_id] = self._callers[server_id].call("status"), time.monotonic()
                elif time.monotonic() - asked_at > self._timeouts.report_s:
                    self._forget(server_id)
                    self._callers[server_id].kill()  # so that its call raises

    def _check_all_listen(self) -> None:
        if self._starting:
            lost = ", ".join(self._starting)
            raise NotSaved(f"no checkpoint is written while {lost} is being started again")

    def finish_training(self, update_s: float) -> None:
        """Ends learning; the servers go on acting with their last weights.

        Args:
            update_s: for how long to wait for the end of an update.

        Raises:
            NotSaved: a server was lost.
            RunFailed: one was lost once too often, or training failed.
        """
        self.collect(ANSWER_S)
        self._check_all_listen()
        calls = {
            caller.call("finish_training", update_s, self._taken.get(server_id, 0)): server_id
            for server_id, caller in self._callers.items()
        }
        timeout_s = update_s + self._timeouts.report_s
        left = dict(calls)
        for call in self._until_done(calls, timeout_s):
            server_id = left.pop(call)
            if isinstance(report := outcome(call), ProcessEnded):
                self._lose(server_id, report)
            elif isinstance(report, Exception):
                raise self._failure(server_id, report) from report
            else:
                self._take(server_id, report)
        for server_id in left.values():
            hint = "(timeouts.update_s sets how long it may take)"
            raise self._failure(server_id, Silent(f"did not answer for {timeout_s:g} s {hint}"))
        self._check_training()
        self._check_all_listen()
        self._has_finished = True

    # --- the end ------------------------------------------------------------------------

    def kill(self) -> None:
        """Ends all servers at once; nothing is saved."""
        for caller in self._callers.values():
            caller.kill()
        self._callers, self._starting = {}, {}

    def stop(self) -> None:
        """Ends all servers, whatever state they are in."""
        for server_id in self._starting:
            self._callers.pop(server_id).kill()
        self._starting = {}
        alive, self._callers = self._callers, {}
        for server_id, answer in self._answers(ANSWER_S):
            if isinstance(answer, ServerReport):
                with contextlib.suppress(CannotRecord):
                    self._take(server_id, answer)
        stop_s = self._timeouts.stop_s
        last_reports = {
            caller.call("finish_training", stop_s, self._taken.get(server_id, 0)): server_id
            for server_id, caller in alive.items()
        }
        for call in first_done(list(last_reports), stop_s + 5.0, all_of_them=True):
            # Not even a full disk keeps a server alive.
            with contextlib.suppress(CannotRecord):
                if isinstance(report := outcome(call), ServerReport):
                    self._take(last_reports[call], report)
        stops = [caller.call("stop") for caller in alive.values()]
        first_done(stops, stop_s, all_of_them=True)
        for caller in alive.values():
            caller.kill()

    def _take(self, server_id: str, report: ServerReport) -> None:
        """Takes in a report, without the records that came before: an interrupted call, or one
        that was under way beside another, has them sent again."""
        self.statuses[server_id] = report.said.status
        taken = self._taken.get(server_id, 0)
        records = [r for r in report.said.records if r["iteration"] > taken]
        said = structs.replace(report.said, records=records)
        super()._take(server_id, replace(report, said=said))
        if records:
            self._taken[server_id] = records[-1]["iteration"]

    def _who(self, server_id: str) -> str:
        """A server in messages, with its process once it listens."""
        if server_id not in self._pids:
            return f"server {server_id!r}"
        algorithm = self._plans[server_id].shown_algorithm
        return f"server {server_id!r} (pid {self._pids[server_id]}, {algorithm})"
