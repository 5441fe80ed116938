"""The server processes of a run: started together, asked, and ended with their checkpoints."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from muxrl.orchestrator.config import Experiment
from muxrl.orchestrator.errors import CannotRecord, NotSaved, RunFailed
from muxrl.orchestrator.records.checkpoints import SavedServer
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.runs.actors import (
    answer_of,
    death_of,
    failure,
    start_actor,
)
from muxrl.orchestrator.runs.episodes import ServerAddress
from muxrl.orchestrator.runs.processes import ServerProcess, ServerReport
from muxrl.protocol.messages import Status

logger = logging.getLogger(__name__)

_DEATH_NOTICE_S = 3.0
"""How long Ray may take to learn of a server's death after a simulation has felt it."""


class ServerActors:
    """The servers of one run.

    Args:
        experiment: resolved.
        folder: the run's directory.
        on_report: called with each server's id and report, while the run goes on and at its end.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: RunDirectory,
        on_report: Callable[[str, ServerReport], None],
    ) -> None:
        self.addresses: dict[str, ServerAddress] = {}
        self.statuses: dict[str, Status] = {}
        """The newest one of each server that has reported."""
        self._experiment = experiment
        self._timeouts = experiment.config.timeouts
        self._folder = folder
        self._on_report = on_report
        self._actors: dict[str, Any] = {}
        self._pids: dict[str, int] = {}

    def start(self, scheduling: Any) -> None:
        """Starts all servers and waits until they listen.

        Raises:
            RunFailed: one did not start.
        """
        for server_id, plan in self._experiment.servers.items():
            self._actors[server_id] = start_actor(
                ServerProcess,
                plan,
                self._folder.log(server_id),
                scheduling=scheduling,
                num_cpus=plan.resources.num_cpus,
                num_gpus=plan.resources.num_gpus,
                max_concurrency=4,
            )
        starts = {s: actor.start.remote() for s, actor in self._actors.items()}
        for server_id, ref in starts.items():
            address, pid = self._answer(server_id, ref, self._timeouts.start_s, "timeouts.start_s")
            token = self._experiment.servers[server_id].token
            self.addresses[server_id] = ServerAddress(address, token)
            self._pids[server_id] = pid
        self._folder.write_addresses({s: a.address for s, a in self.addresses.items()})

    def ask(self) -> dict[str, Any]:
        """Asks every server for its report; `collect` waits for the answers."""
        return {server_id: actor.report.remote() for server_id, actor in self._actors.items()}

    def collect(self, reports: Mapping[str, Any]) -> None:
        """Takes in the reports that were asked for.

        Raises:
            RunFailed: a server died, did not answer, or its training failed.
        """
        self._collect(reports, self._timeouts.report_s, "timeouts.report_s")

    def _collect(self, reports: Mapping[str, Any], timeout_s: float, key: str) -> None:
        for server_id, ref in reports.items():
            report = self._answer(server_id, ref, timeout_s, key)
            self._take(server_id, report)
            if report.status.problem:
                raise RunFailed(
                    f"server {server_id!r}: {report.status.problem}; its log: "
                    f"{self._folder.log(server_id)}"
                )

    def save(self, draft: Path, update_s: float) -> dict[str, SavedServer]:
        """Has all servers write their checkpoints at the same time, and takes in their reports.

        Args:
            draft: the folder in which each makes one of its own.
            update_s: for how long to wait for the end of an update.

        Raises:
            NotSaved: one did not write it.
            RunFailed: one has died.
        """
        import ray

        save_s = self._timeouts.save_s
        saves = {
            server_id: actor.save.remote(draft / server_id, update_s)
            for server_id, actor in self._actors.items()
        }
        saved: dict[str, SavedServer] = {}
        problems: list[str] = []
        for server_id, ref in saves.items():
            try:
                saved[server_id], report = ray.get(ref, timeout=update_s + save_s)
                self._take(server_id, report)
            except ray.exceptions.RayActorError as error:
                raise self._failure(server_id, error) from error
            except ray.exceptions.GetTimeoutError:
                why = f"it was not written within {update_s + save_s:g} s (timeouts.save_s)"
                problems.append(f"no checkpoint of server {server_id!r}: {why}")
            except ray.exceptions.RayTaskError as error:
                why = f"{type(error.cause).__name__}: {error.cause}"
                problems.append(f"no checkpoint of server {server_id!r}: {why}")
        if problems:
            raise NotSaved("; ".join(problems))
        return saved

    def finish_training(self, update_s: float) -> None:
        """Ends learning; the servers go on acting with their last weights.

        Args:
            update_s: for how long to wait for the end of an update.

        Raises:
            RunFailed: a server died, or its training failed.
        """
        reports = {
            server_id: actor.finish_training.remote(update_s)
            for server_id, actor in self._actors.items()
        }
        timeout_s = update_s + self._timeouts.report_s
        self._collect(reports, timeout_s, "timeouts.update_s")

    def find_death(self) -> RunFailed | None:
        """Returns what to raise if a server has just died, None if all live."""
        deadline = time.monotonic() + _DEATH_NOTICE_S
        for server_id, actor in self._actors.items():
            left_s = max(0.1, deadline - time.monotonic())
            death = death_of(actor.status.remote(), left_s)
            if death is not None:
                return self._failure(server_id, death)
        return None

    def kill(self) -> None:
        """Ends all servers at once; nothing is saved."""
        import ray

        for actor in self._actors.values():
            ray.kill(actor)
        self._actors = {}

    def stop(self) -> None:
        """Ends all servers, whatever state they are in."""
        import ray

        alive, self._actors = self._actors, {}
        if not alive:
            return
        stop_s = self._timeouts.stop_s
        last_reports = {
            server_id: actor.finish_training.remote(stop_s) for server_id, actor in alive.items()
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
        self.statuses[server_id] = report.status
        self._on_report(server_id, report)

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
