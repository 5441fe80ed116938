"""The server processes of a run: started together, asked, and ended with their checkpoints."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from muxrl.orchestrator.config import Experiment
from muxrl.orchestrator.errors import CannotRecord, RunFailed
from muxrl.orchestrator.records.run_directory import RunDirectory
from muxrl.orchestrator.runs.actors import (
    answer_of,
    cause_of_death,
    death_of,
    failure,
    start_actor,
)
from muxrl.orchestrator.runs.episodes import ServerAddress
from muxrl.orchestrator.runs.processes import ServerProcess, ServerReport
from muxrl.protocol.messages import Status

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 120.0
_REPORT_TIMEOUT_S = 60.0
_UPDATE_TIMEOUT_S = 120.0
"""For the last update; clients wait as long for one."""
_STOP_TIMEOUT_S = 45.0
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
            address, pid = self._answer(server_id, ref, _START_TIMEOUT_S)
            token = self._experiment.servers[server_id].token
            self.addresses[server_id] = ServerAddress(address, token)
            self._pids[server_id] = pid
        self._folder.write_addresses({s: a.address for s, a in self.addresses.items()})

    def ask(self) -> dict[str, Any]:
        """Asks every server for its report; `collect` waits for the answers."""
        return {server_id: actor.report.remote() for server_id, actor in self._actors.items()}

    def collect(self, reports: Mapping[str, Any], timeout_s: float = _REPORT_TIMEOUT_S) -> None:
        """Takes in the reports that were asked for.

        Raises:
            RunFailed: a server died, did not answer, or its training failed.
        """
        for server_id, ref in reports.items():
            report = self._answer(server_id, ref, timeout_s)
            self._take(server_id, report)
            if report.status.problem:
                raise RunFailed(
                    f"server {server_id!r}: {report.status.problem}; its log: "
                    f"{self._folder.log(server_id)}"
                )

    def save_soon(self, env_steps: int) -> None:
        """Asks every server for a checkpoint after the training iteration under way."""
        for server_id, actor in self._actors.items():
            folder = self._folder.checkpoints / server_id / f"{env_steps}_env_steps"
            actor.save_soon.remote(folder.absolute())

    def finish_training(self) -> None:
        """Ends learning; the servers go on acting with their last weights.

        Raises:
            RunFailed: a server died, or its training failed.
        """
        reports = {
            server_id: actor.finish_training.remote(_UPDATE_TIMEOUT_S)
            for server_id, actor in self._actors.items()
        }
        self.collect(reports, _UPDATE_TIMEOUT_S + _REPORT_TIMEOUT_S)

    def find_death(self) -> RunFailed | None:
        """Returns what to raise if a server has just died, None if all live."""
        deadline = time.monotonic() + _DEATH_NOTICE_S
        for server_id, actor in self._actors.items():
            left_s = max(0.1, deadline - time.monotonic())
            death = death_of(actor.status.remote(), left_s)
            if death is not None:
                return failure(self._name(server_id), death, self._folder.log(server_id))
        return None

    def kill(self) -> None:
        """Ends all servers at once; nothing is saved."""
        import ray

        for actor in self._actors.values():
            ray.kill(actor)
        self._actors = {}

    def stop(self, *, should_save: bool) -> list[str]:
        """Ends all servers, whatever state they are in.

        Args:
            should_save: whether each writes its last checkpoint.

        Returns:
            What could not be saved, and why, in a sentence each.
        """
        import ray

        alive, self._actors = self._actors, {}
        if not alive:
            return []
        last_reports = {
            server_id: actor.finish_training.remote(_STOP_TIMEOUT_S)
            for server_id, actor in alive.items()
        }
        with contextlib.suppress(ray.exceptions.RayError):
            ray.wait(
                list(last_reports.values()),
                num_returns=len(last_reports),
                timeout=_STOP_TIMEOUT_S + 5.0,
            )
        for server_id, ref in last_reports.items():
            # Not even a full disk keeps a server alive.
            with contextlib.suppress(ray.exceptions.RayError, CannotRecord):
                self._take(server_id, ray.get(ref, timeout=0.0))
        unsaved = self._save(alive) if should_save else []
        ray.wait(
            [actor.stop.remote() for actor in alive.values()],
            num_returns=len(alive),
            timeout=_STOP_TIMEOUT_S,
        )
        for actor in alive.values():
            ray.kill(actor)
        return unsaved

    def _save(self, actors: Mapping[str, Any]) -> list[str]:
        import ray

        unsaved: list[str] = []
        saves = {
            server_id: actor.save.remote((self._folder.checkpoints / server_id / "last").absolute())
            for server_id, actor in actors.items()
        }
        for server_id, ref in saves.items():
            try:
                ray.get(ref, timeout=_STOP_TIMEOUT_S)
            except ray.exceptions.RayError as error:
                unsaved.append(f"no checkpoint of server {server_id!r}: {_why_unsaved(error)}")
                logger.warning(unsaved[-1])
        return unsaved

    def _take(self, server_id: str, report: ServerReport) -> None:
        self.statuses[server_id] = report.status
        self._on_report(server_id, report)

    def _answer(self, server_id: str, ref: Any, timeout_s: float) -> Any:
        return answer_of(ref, timeout_s, self._name(server_id), self._folder.log(server_id))

    def _name(self, server_id: str) -> str:
        """A server in messages, with its process once it listens."""
        if server_id not in self._pids:
            return f"server {server_id!r}"
        algorithm = self._experiment.servers[server_id].algorithm
        return f"server {server_id!r} (pid {self._pids[server_id]}, {algorithm})"


def _why_unsaved(error: Exception) -> str:
    import ray

    if isinstance(error, ray.exceptions.GetTimeoutError):
        return f"it was not written within {_STOP_TIMEOUT_S:g} s"
    if isinstance(error, ray.exceptions.RayTaskError):
        return f"{type(error.cause).__name__}: {error.cause}"
    return cause_of_death(error)
