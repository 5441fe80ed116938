"""The server processes of a run: started together, asked, and ended with their checkpoints."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from muxrl.orchestrator.config import Experiment
from muxrl.orchestrator.errors import CannotRecord, NotSaved, RunFailed, Silent
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.storage.checkpoints import (
    CheckpointFolder,
    Manifest,
    SavedServer,
    find_newest_of_server,
)
from muxrl.orchestrator.supervise.actors import (
    Reports,
    answer_of,
    death_of,
    end_actor,
    failure,
    is_dead,
    start_actor,
)
from muxrl.orchestrator.supervise.episodes import ServerAddress
from muxrl.orchestrator.supervise.placement import own_place
from muxrl.orchestrator.supervise.restarts import Quota
from muxrl.orchestrator.supervise.server_process import ServerProcess, ServerReport
from muxrl.protocol.messages import Status
from muxrl.servers.config import ServerPlan

logger = logging.getLogger(__name__)

_DEATH_NOTICE_S = 3.0
"""How long Ray may take to learn of a server's death after a simulation has felt it."""
_ANSWER_S = 5.0
"""For reports before a checkpoint, of servers that are busy."""


class ServerActors:
    """The servers of one run; one that is lost is started again, as `servers.X.restarts` allows.

    Args:
        experiment: resolved.
        folder: the run's directory.
        on_report: called with each server's id and report, while the run goes on and at its end.
        on_restart: called when a server is lost and started again, with its id and the manifest of
            the checkpoint from which it goes on; None: from scratch.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: RunDirectory,
        on_report: Callable[[str, ServerReport], None],
        on_restart: Callable[[str, Manifest | None], None],
    ) -> None:
        self.addresses: dict[str, ServerAddress] = {}
        self.statuses: dict[str, Status] = {}
        """The newest one of each server that has reported."""
        self.may_restart = True
        self._experiment = experiment
        self._timeouts = experiment.config.timeouts
        self._folder = folder
        self._on_report = on_report
        self._on_restart = on_restart
        self._scheduling: Any = None
        self._actors: dict[str, Any] = {}
        self._starting: dict[str, tuple[Any, float]] = {}  # calls and deadlines
        self._has_finished = False
        self._lost_for_good: RunFailed | None = None
        self._pids: dict[str, int] = {}
        self._taken: dict[str, int] = {}
        """The newest iteration of each server whose record has been taken in."""
        self._reports = Reports(self._timeouts.report_s, 0.0, taken=self._taken)
        self._quotas = {
            server_id: Quota(
                server.restarts
                if server.on_server_loss != "stop"
                else replace(server.restarts, max=0),
                f"servers.{server_id}.restarts",
            )
            for server_id, server in experiment.config.servers.items()
        }

    @property
    def restarting(self) -> list[str]:
        """The servers that were lost and do not listen again yet."""
        return list(self._starting)

    def start(self, scheduling: Any) -> None:
        """Starts all servers and waits until they listen.

        Raises:
            RunFailed: one did not start; at once, however long others take.
        """
        import ray

        self._scheduling = scheduling
        for server_id, plan in self._experiment.servers.items():
            self._start(server_id, plan)
        starts = {actor.start.remote(): s for s, actor in self._actors.items()}
        listening: dict[str, str] = {}
        left = list(starts)
        while left:
            answered, left = ray.wait(left, timeout=self._timeouts.start_s)
            for ref in answered:
                address, pid = self._answer(starts[ref], ref, 0.0, "timeouts.start_s")
                listening[starts[ref]], self._pids[starts[ref]] = address, pid
            if not answered:
                after = f"{self._timeouts.start_s:g} s (timeouts.start_s sets how long it may take)"
                raise self._failure(starts[left[0]], Silent(f"did not answer for {after}"))
        for server_id, plan in self._experiment.servers.items():
            self.addresses[server_id] = ServerAddress(listening[server_id], plan.token)
        self._folder.write_addresses({s: a.address for s, a in self.addresses.items()})

    def _start(self, server_id: str, plan: ServerPlan) -> None:
        self._actors[server_id] = start_actor(
            ServerProcess,
            plan,
            self._folder.log(server_id),
            scheduling=own_place(self._scheduling, self._experiment.config, server_id),
            is_forked=plan.resources.num_gpus == 0,
            num_cpus=plan.resources.num_cpus,
            num_gpus=plan.resources.num_gpus,
            max_concurrency=4,
        )

    @property
    def _listening(self) -> dict[str, Any]:
        return {s: actor for s, actor in self._actors.items() if s not in self._starting}

    def ask(self) -> None:
        """Asks every server for its report; `collect` takes in the answers."""
        self._reports.ask(self._listening)

    def collect(self, wait_s: float) -> None:
        """Takes in the reports that have come, and looks after servers that were lost.

        Args:
            wait_s: for how long to wait for reports.

        Raises:
            RunFailed: a server was lost once too often, or its training failed.
        """
        self._take_starts()
        for server_id, answer in self._reports.take(wait_s):
            if isinstance(answer, ServerReport):
                self._take_whole(server_id, answer)
            elif isinstance(answer, Exception):
                self._lose(server_id, answer)

    def report_now(self) -> None:
        """Takes in how things stand at this moment, of all that answer soon.

        Raises:
            RunFailed: as `collect`.
        """
        self.collect(_ANSWER_S)  # what was asked for before is of before
        self.ask()
        self.collect(_ANSWER_S)

    @property
    def is_waited_for(self) -> bool:
        """Whether simulations would have to wait for an update of any of them."""
        return any(status.is_waiting_for_learner for status in self.statuses.values())

    def _take_whole(self, server_id: str, report: ServerReport) -> None:
        self._take(server_id, report)
        if report.status.problem and self.may_restart:  # else the run is ending, of that perhaps
            raise RunFailed(
                f"server {server_id!r}: {report.status.problem}; its log: "
                f"{self._folder.log(server_id)}"
            )

    # --- one is lost --------------------------------------------------------------------

    def _lose(self, server_id: str, error: Exception) -> None:
        """Kills what is left of a server, and starts it again.

        Raises:
            RunFailed: it may not be started again.
        """
        problem = self._failure(server_id, error)
        self._pids.pop(server_id, None)
        process = self._reports.forget(server_id)
        self._taken.pop(server_id, None)
        end_actor(self._actors.pop(server_id), None if is_dead(error) else process)
        self._starting.pop(server_id, None)
        try:
            if not self.may_restart:
                raise problem
            self._quotas[server_id].take(problem)
        except RunFailed as final:
            self._lost_for_good = final
            raise
        plan = self._experiment.servers[server_id]
        port = int(self.addresses[server_id].address.rpartition(":")[2])
        num_restarts = self._quotas[server_id].num_taken
        plan = replace(plan, port=port, resume_from="", num_restarts=num_restarts)
        saved = find_newest_of_server(CheckpointFolder(self._folder.checkpoints), server_id)
        if saved is None:
            story = "from scratch: there is no checkpoint of it"
        else:
            place, manifest = saved
            story = f"from its checkpoint at {manifest.env_steps:,} env steps"
            if manifest.servers[server_id].files:
                plan = replace(plan, resume_from=str(place), initialize_from="")
        logger.warning("%s; it is started again %s", problem, story)
        self._start(server_id, plan)
        self._starting[server_id] = (
            self._actors[server_id].start.remote(),
            time.monotonic() + self._timeouts.start_s,
        )
        self._on_restart(server_id, saved[1] if saved else None)

    def _take_starts(self) -> None:
        """Welcomes servers that listen again."""
        import ray

        for server_id, (ref, deadline) in list(self._starting.items()):
            if not ray.wait([ref], timeout=0)[0]:
                if time.monotonic() >= deadline:
                    after = f"{self._timeouts.start_s:g} s (timeouts.start_s)"
                    self._lose(server_id, Silent(f"did not listen within {after}"))
                continue
            try:
                _, self._pids[server_id] = ray.get(ref)
            except (ray.exceptions.RayTaskError, ray.exceptions.RayActorError) as error:
                self._lose(server_id, error)
                continue
            del self._starting[server_id]
            logger.info("server %r listens again", server_id)
            if self._has_finished:
                self._actors[server_id].finish_training.remote(self._timeouts.update_s)

    def notice_deaths(self) -> None:
        """Looks after servers that have just died, of which Ray may learn only now.

        Raises:
            RunFailed: one may not be started again, or was lost for good before.
        """
        if self._lost_for_good is not None:
            raise self._lost_for_good
        deadline = time.monotonic() + _DEATH_NOTICE_S
        for server_id, actor in self._listening.items():
            left_s = max(0.1, deadline - time.monotonic())
            death = death_of(actor.status.remote(), left_s)
            if death is not None:
                self._lose(server_id, death)

    def abort_episodes(self, prefix: str) -> None:
        """Has all servers close the episodes whose ids begin so."""
        for actor in self._listening.values():
            actor.abort_episodes.remote(prefix)

    # --- what they have learned ---------------------------------------------------------

    def save(self, draft: Path, update_s: float) -> dict[str, SavedServer]:
        """Has all servers write their checkpoints at the same time, and takes in their reports.

        Args:
            draft: the folder in which each makes one of its own.
            update_s: for how long to wait for the end of an update.

        Raises:
            NotSaved: one did not write it, or was lost.
            RunFailed: one was lost once too often.
        """
        import ray

        self._check_all_listen()
        self.collect(_ANSWER_S)
        if silent := self._reports.owing():  # its iterations would be written after the checkpoint
            raise NotSaved(f"no checkpoint: server {silent[0]!r} has not reported")
        self._check_all_listen()
        timeout_s = update_s + self._timeouts.save_s
        saves = {
            actor.save.remote(draft / server_id, update_s, self._taken.get(server_id, 0)): server_id
            for server_id, actor in self._actors.items()
        }
        saved: dict[str, SavedServer] = {}
        problems: list[str] = []
        for ref in self._until_done(saves, timeout_s):
            server_id = saves[ref]
            try:
                saved[server_id], report = ray.get(ref)
                self._take(server_id, report)
            except ray.exceptions.RayActorError as error:
                self._lose(server_id, error)
                problems.append(f"no checkpoint: server {server_id!r} was lost")
            except ray.exceptions.RayTaskError as error:
                why = f"{type(error.cause).__name__}: {error.cause}"
                problems.append(f"no checkpoint of server {server_id!r}: {why}")
        for server_id in saves.values():
            if server_id not in saved and not problems:
                why = f"it was not written within {timeout_s:g} s (timeouts.save_s)"
                problems.append(f"no checkpoint of server {server_id!r}: {why}")
        if problems:
            raise NotSaved("; ".join(problems))
        return saved

    def _until_done(self, calls: Mapping[Any, str], timeout_s: float) -> Iterator[Any]:
        """Yields calls of servers when they are done; a server that is silent is killed.

        For reports would be too early: they are of the time after a checkpoint.
        """
        import ray

        deadline = time.monotonic() + timeout_s
        signs = {
            server_id: (self._actors[server_id].status.remote(), time.monotonic())
            for server_id in calls.values()
        }
        left = list(calls)
        while left and time.monotonic() < deadline:
            done, left = ray.wait(left, timeout=1.0)
            yield from done
            for server_id in {calls[ref] for ref in left}:
                sign, asked_at = signs[server_id]
                if ray.wait([sign], timeout=0)[0]:
                    signs[server_id] = self._actors[server_id].status.remote(), time.monotonic()
                elif time.monotonic() - asked_at > self._timeouts.report_s:
                    process = self._reports.forget(server_id)
                    end_actor(self._actors[server_id], process)  # so that its call raises

    def _check_all_listen(self) -> None:
        if self._starting:
            raise NotSaved(f"no checkpoint: {', '.join(self._starting)} is being started again")

    def finish_training(self, update_s: float) -> None:
        """Ends learning; the servers go on acting with their last weights.

        Args:
            update_s: for how long to wait for the end of an update.

        Raises:
            NotSaved: a server was lost.
            RunFailed: one was lost once too often, or training failed.
        """
        import ray

        self.collect(_ANSWER_S)
        self._check_all_listen()
        reports = {
            server_id: actor.finish_training.remote(update_s, self._taken.get(server_id, 0))
            for server_id, actor in self._actors.items()
        }
        timeout_s = update_s + self._timeouts.report_s
        for server_id, ref in reports.items():
            try:
                report = ray.get(ref, timeout=timeout_s)
            except ray.exceptions.RayActorError as error:
                self._lose(server_id, error)
                continue
            except ray.exceptions.GetTimeoutError:
                report = self._answer(server_id, ref, 0.0, "timeouts.update_s")
            except ray.exceptions.RayTaskError as error:
                raise self._failure(server_id, error) from error
            self._take_whole(server_id, report)
        self._check_all_listen()
        self._has_finished = True

    # --- the end ------------------------------------------------------------------------

    def kill(self) -> None:
        """Ends all servers at once; nothing is saved."""
        import ray

        for actor in self._actors.values():
            ray.kill(actor)
        self._actors, self._starting = {}, {}

    def stop(self) -> None:
        """Ends all servers, whatever state they are in."""
        import ray

        for server_id in self._starting:
            ray.kill(self._actors.pop(server_id))
        self._starting = {}
        alive, self._actors = self._actors, {}
        if not alive:
            return
        for server_id, answer in self._reports.take(_ANSWER_S):
            if isinstance(answer, ServerReport):
                with contextlib.suppress(CannotRecord):
                    self._take(server_id, answer)
        stop_s = self._timeouts.stop_s
        last_reports = {
            server_id: actor.finish_training.remote(stop_s, self._taken.get(server_id, 0))
            for server_id, actor in alive.items()
        }
        with contextlib.suppress(ray.exceptions.RayError):
            ray.wait(
                list(last_reports.values()),
                num_returns=len(last_reports),
                timeout=stop_s + 5.0,
            )
        for server_id, ref in last_reports.items():
            # Not even a full disk keeps a server alive.
            with contextlib.suppress(ray.exceptions.RayError, CannotRecord):
                self._take(server_id, ray.get(ref, timeout=0.0))
        ray.wait(
            [actor.stop.remote() for actor in alive.values()],
            num_returns=len(alive),
            timeout=stop_s,
        )
        for actor in alive.values():
            ray.kill(actor)

    def _take(self, server_id: str, report: ServerReport) -> None:
        """Takes in a report, without the records that came before: an interrupted call, or one
        that was under way beside another, has them sent again."""
        self.statuses[server_id] = report.status
        taken = self._taken.get(server_id, 0)
        records = [r for r in report.records if r["iteration"] > taken]
        self._on_report(server_id, replace(report, records=records))
        if records:
            self._taken[server_id] = records[-1]["iteration"]

    def _answer(self, server_id: str, ref: Any, timeout_s: float, key: str) -> Any:
        log = self._folder.log(server_id)
        return answer_of(ref, timeout_s, self._name(server_id), log, key)

    def _failure(self, server_id: str, error: Exception) -> RunFailed:
        return failure(self._name(server_id), error, self._folder.log(server_id))

    def _name(self, server_id: str) -> str:
        """A server in messages, with its process once it listens."""
        if server_id not in self._pids:
            return f"server {server_id!r}"
        algorithm = self._experiment.servers[server_id].algorithm
        return f"server {server_id!r} (pid {self._pids[server_id]}, {algorithm})"
