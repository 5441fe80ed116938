"""Starts the processes of a run on the machines of a Ray cluster.

Each process has a Ray actor, a `NodeActor`, which runs a `Worker` on its machine and passes calls
on to it. If that machine does not see the run's directory, a checkpoint from which the process
begins is sent to it, and it sends logs and checkpoints back with its answers, all of this through
Ray's object store.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from muxrl.orchestrator.config import ExperimentConfig
from muxrl.orchestrator.errors import Ended, RunFailed
from muxrl.orchestrator.supervise.placement import own_place
from muxrl.orchestrator.supervise.process import HOST, worker_environment
from muxrl.orchestrator.supervise.worker import Caller, Worker
from muxrl.servers.config import ServerPlan

_MOST_LOG_BYTES = 1 << 20
"""Most bytes of the log in one answer."""
_KILL_S = 5.0
_LOST_AFTER_S = 10.0
"""A GCS (Ray's head service) that is silent for so long counts as lost. Ray itself waits 60 s for
its restart and then kills the orchestrator, too: a run has to be saved before."""
_LOOK_EVERY_S = 2.0
_ANSWER_S = 1.0


class ClusterWorkers:
    """Starts processes on the Ray cluster that this process is connected to; see `Workers`.

    Args:
        config: the run's config.
        scheduling: the strategy that `placement.reserved` yields; None: Ray chooses, and inside of
            a placement group it takes that group.
    """

    def __init__(self, config: ExperimentConfig, scheduling: Any = None) -> None:
        import ray

        self._config, self._scheduling = config, scheduling
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        self._head = host.strip("[]"), int(port)
        self._looked_at = self._seen_at = time.monotonic()

    def start(
        self, name: str, process: type, *arguments: Any, log: Path, is_forked: bool = False
    ) -> Caller:
        """See `Workers`."""
        return _Remote(process, arguments, log, own_place(self._scheduling, self._config, name))

    def check(self) -> None:
        """Checks that Ray's GCS takes connections, at most every two seconds.

        Without it running processes still answer, and can be saved, but no process can be started.

        Raises:
            RunFailed: the GCS has taken no connection for ten seconds.
        """
        now = time.monotonic()
        if now - self._looked_at < _LOOK_EVERY_S:
            return
        self._looked_at = now
        try:
            socket.create_connection(self._head, _ANSWER_S).close()
            self._seen_at = now
        except OSError as error:
            if now - self._seen_at >= _LOST_AFTER_S:
                raise RunFailed(
                    f"Ray's GCS at {self._head[0]}:{self._head[1]} is lost "
                    f"({error.strerror or error}), and Ray ends all processes of the run within a "
                    "minute; was the GCS killed, perhaps because memory ran out? Continue with "
                    "muxrl launch --resume"
                ) from None


class _Answer(NamedTuple):
    """What a `NodeActor` returns."""

    has_raised: bool
    value: Any
    files: Mapping[str, bytes]
    """The files of a checkpoint, by their path in its folder."""
    log: bytes


class _Remote:
    """A process on a machine of the cluster; see `Caller`."""

    def __init__(
        self, process: type, arguments: Sequence[Any], log: Path, options: Mapping[str, Any]
    ) -> None:
        import ray

        self._numbers = itertools.count()
        self._log = log
        self._actor = (
            ray.remote(NodeActor)
            .options(
                max_restarts=0,
                runtime_env={"env_vars": worker_environment()},
                # Otherwise Ray's GCS keeps events of every call, for a dashboard.
                enable_task_events=False,
                **options,
            )
            .remote(process, arguments, log, _node_id(), _checkpoint_of(arguments))
        )

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        """See `Caller`."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        number = next(self._numbers)
        try:
            sent = self._actor.call.remote(number, method, arguments)
        except Exception as error:  # noqa: BLE001  # Ray may raise anything, once it is lost
            future.set_exception(Ended(cause_of_death(error)))
            return future

        def settle(done: Future[Any]) -> None:
            if (error := done.exception()) is not None:
                future.set_exception(Ended(cause_of_death(error)))
                return
            answer: _Answer = done.result()
            try:
                if answer.files:
                    unpack(answer.files, arguments[0])
                if answer.log:
                    with self._log.open("ab") as file:
                        file.write(answer.log)
            except OSError as error:  # this machine's disk is full, say
                future.set_exception(error)
            else:
                (future.set_exception if answer.has_raised else future.set_result)(answer.value)

        sent.future().add_done_callback(settle)
        return future

    def kill(self) -> None:
        """See `Caller`."""
        import ray

        with contextlib.suppress(Exception):  # a stopped worker would outlive its actor
            ray.wait([self._actor.kill.remote()], timeout=_KILL_S)
        with contextlib.suppress(Exception):
            ray.kill(self._actor)


class NodeActor:
    """A worker on a machine of the cluster, as a Ray actor.

    Args:
        process, arguments, log: see `Worker`.
        node_id: Ray's id of the machine with the run's directory.
        checkpoint: a list with a reference to the checkpoint from which a server begins, or [].
    """

    def __init__(
        self,
        process: type,
        arguments: Sequence[Any],
        log: Path,
        node_id: str,
        checkpoint: list[Any],
    ) -> None:
        import ray

        self._here = contextlib.ExitStack()
        self._log, self._logged = log, 0
        self._sees_run = (log.parent.parent / "metrics").is_dir()  # which the orchestrator makes
        if not self._sees_run and log.exists():
            self._logged = log.stat().st_size
        if checkpoint and node_id != _node_id():
            folder = self._here.enter_context(tempfile.TemporaryDirectory(prefix="muxrl-away-"))
            unpack(ray.get(checkpoint[0]), Path(folder))
            plan, *rest = arguments
            where = "resume_from" if plan.resume_from else "initialize_from"
            arguments = [replace(plan, **{where: folder}), *rest]
        env = {HOST: ray.util.get_node_ip_address()}
        self._worker = Worker(process, arguments, log, env=env)
        self._next = 0
        self._turn = asyncio.Condition()

    async def call(self, number: int, method: str, arguments: Sequence[Any]) -> _Answer:
        """Passes a call on to the worker, in the order of numbers: Ray itself keeps no order."""
        async with self._turn:
            await self._turn.wait_for(lambda: self._next == number)
            with contextlib.ExitStack() as stack:
                place = None
                if method == "save" and not arguments[0].parent.is_dir():
                    made = tempfile.TemporaryDirectory(prefix="muxrl-away-")
                    place = Path(stack.enter_context(made)) / arguments[0].name
                    arguments = [place, *arguments[1:]]
                answer = self._worker.call(method, *arguments)
                self._next += 1
                self._turn.notify_all()
                later = stack.pop_all()
        with later:
            try:
                has_raised, value = False, await asyncio.wrap_future(answer)
            except Exception as error:  # noqa: BLE001  # the caller gets it
                has_raised, value = True, error
            if method == "start":
                self._here.close()
            files = {} if place is None or has_raised else pack(place)
            return _Answer(has_raised, value, files, self._new_log())

    async def kill(self) -> None:
        """Ends the worker."""
        self._worker.kill()

    def _new_log(self) -> bytes:
        """Returns what was logged since the last answer, if the run's directory is not here."""
        if self._sees_run:
            return b""
        with self._log.open("rb") as file:
            file.seek(self._logged)
            text = file.read(_MOST_LOG_BYTES)
        self._logged += len(text)
        return text


def _node_id() -> str:
    """Returns Ray's id of this machine."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _checkpoint_of(arguments: Sequence[Any]) -> list[Any]:
    """Puts the checkpoint from which a server begins into Ray's object store, for other machines.

    Returns:
        A list with the reference; [] if there is no checkpoint, or only one machine.
    """
    import ray

    plan = arguments[0] if arguments else None
    path = isinstance(plan, ServerPlan) and (plan.resume_from or plan.initialize_from)
    if not path or len(ray.nodes()) == 1:
        return []
    return [ray.put(pack(Path(path)))]


def pack(folder: Path) -> dict[str, bytes]:
    """Returns the files below a folder; raises `OSError` if one cannot be read."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def unpack(files: Mapping[str, bytes], folder: Path) -> None:
    """Writes files that `pack` has returned; raises `OSError` if one cannot be written."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def cause_of_death(error: BaseException) -> str:
    """Returns Ray's reason for an actor's death, as one line without boilerplate."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in lines:
        if "exit" in line.lower() or "killed" in line.lower() or "out of memory" in line.lower():
            return line[:300]
    return lines[0][:300] if lines else type(error).__name__
