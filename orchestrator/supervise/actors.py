"""The Ray actors of a run: started, asked, ended, and why one died or failed."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from muxrl.orchestrator.errors import RunFailed, Silent
from muxrl.orchestrator.supervise.fork_server import forked_worker
from muxrl.orchestrator.supervise.main_thread import HOOK
from muxrl.orchestrator.supervise.process import ProcessId, ProcessReport
from muxrl.orchestrator.supervise.ray_session import worker_environment

_KILL_TIMEOUT_S = 20.0
"""For a process on another machine, where Ray first starts one that kills it."""


def start_actor(
    process: type,
    *arguments: Any,
    scheduling: Any,
    is_forked: bool = False,
    has_main_thread: bool = False,
    **options: Any,
) -> Any:
    """Starts a process of its own for an object, and returns its handle at once.

    Args:
        process: the object's class.
        arguments: with which it is made there.
        scheduling: Ray's scheduling strategy; None: Ray's own choice.
        is_forked: whether it comes from the `fork_server`, if there is one: it needs RLlib, and no
            GPU.
        has_main_thread: whether what is marked so runs there; see `main_thread`.
        options: of the actor, as Ray takes them.
    """
    import ray

    actor = ray.remote(process).options(
        max_restarts=0,
        runtime_env={
            "env_vars": {**worker_environment(), **(HOOK if has_main_thread else {})},
            **(forked_worker() if is_forked else {}),
        },
        scheduling_strategy=scheduling,
        # Else Ray's GCS keeps what it hears of every call for a dashboard: 14 MiB in four minutes.
        enable_task_events=False,
        **options,
    )
    return actor.remote(*arguments)


class Reports:
    """Asks processes for their reports, each again once it has answered.

    Nobody has to wait for one that is silent: this is noticed when its time is over.

    Args:
        timeout_s: after which a process counts as silent.
        start_s: how much longer the first answer of a process may take.
        step_s: after which one whose simulation is still in the same call counts as silent, too.
        taken: by process, what its `report` is told of the answers so far; none: nothing is.
    """

    def __init__(
        self,
        timeout_s: float,
        start_s: float,
        step_s: float = math.inf,
        taken: Mapping[str, int] | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._start_s = start_s
        self._step_s = step_s
        self._taken = {} if taken is None else taken
        self._asked: dict[str, tuple[Any, float]] = {}
        self._processes: dict[str, ProcessId] = {}

    def ask(self, actors: Mapping[str, Any]) -> None:
        """Asks those that owe no answer."""
        for name, actor in actors.items():
            if name not in self._asked:
                timeout_s = self._timeout_s
                if name not in self._processes:
                    timeout_s += self._start_s
                told = [self._taken[name]] if name in self._taken else []
                self._asked[name] = actor.report.remote(*told), time.monotonic() + timeout_s

    def take(self, wait_s: float) -> Iterator[tuple[str, ProcessReport | Exception]]:
        """Yields what has come, with its process's name: reports, and why there will be none.

        Args:
            wait_s: for how long to wait for answers.
        """
        import ray

        if not self._asked:
            return
        names = {ref: name for name, (ref, _) in self._asked.items()}
        answered, _ = ray.wait(list(names), num_returns=len(names), timeout=wait_s)
        for ref in answered:
            name = names[ref]
            if self._asked.pop(name, None) is None:  # forgotten since
                continue
            try:
                report = ray.get(ref)
            except (ray.exceptions.RayTaskError, ray.exceptions.RayActorError) as error:
                yield name, error
                continue
            self._processes[name] = report.process
            if report.step_s < self._step_s:
                yield name, report
            else:
                yield (
                    name,
                    Silent(
                        f"has been in one step of its simulation for {report.step_s:.0f} s "
                        "(timeouts.step_s sets how long one may take)"
                    ),
                )
        for name, (_, deadline) in list(self._asked.items()):
            if time.monotonic() >= deadline:
                yield (
                    name,
                    Silent(
                        f"did not answer for {self._timeout_s:g} s (timeouts.report_s sets how "
                        "long it may take)"
                    ),
                )

    def owing(self) -> list[str]:
        """Returns the processes whose answers are still to come."""
        return list(self._asked)

    def forget(self, name: str) -> ProcessId | None:
        """Drops what is known of a process that is gone; returns its id if it ever answered."""
        self._asked.pop(name, None)
        return self._processes.pop(name, None)


def end_actor(actor: Any, process: ProcessId | None = None) -> None:
    """Kills an actor's process, even one that is stopped, which does not hear Ray.

    Args:
        actor: its handle.
        process: to be killed by SIGKILL, too; None: it is known to be dead, or nobody knows.
    """
    import ray

    if process is not None:
        if process.node_id == ray.get_runtime_context().get_node_id():
            _kill(process.pid)
        else:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            there = NodeAffinitySchedulingStrategy(process.node_id, soft=False)
            kill = ray.remote(_kill).options(num_cpus=0, scheduling_strategy=there)
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(kill.remote(process.pid), timeout=_KILL_TIMEOUT_S)
    ray.kill(actor)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def is_dead(error: Exception) -> bool:
    """Whether an answer that did not come means that the process is gone."""
    import ray

    return isinstance(error, ray.exceptions.RayActorError)


def answer_of(ref: Any, timeout_s: float | None, who: str, log: Path, key: str = "") -> Any:
    """Returns an actor's answer.

    Args:
        ref: what Ray gave for the call.
        timeout_s: None waits for ever.
        who: the actor, for people.
        log: its file.
        key: of the config that sets the time.

    Raises:
        RunFailed: it died, raised, or did not answer in time.
    """
    import ray

    try:
        return ray.get(ref, timeout=timeout_s)
    except ray.exceptions.GetTimeoutError:
        hint = f" ({key} sets how long it may take)" if key else ""
        raise RunFailed(f"{who} did not answer for {timeout_s:g} s{hint}; its log: {log}") from None
    except (ray.exceptions.RayTaskError, ray.exceptions.RayActorError) as error:
        raise failure(who, error, log) from error


def death_of(ref: Any, timeout_s: float) -> Exception | None:
    """Returns why the actor died that `ref` was asked of, None if it lives or Ray cannot tell yet.

    Raises:
        Exception: what the actor itself raised.
    """
    import ray

    try:
        ray.get(ref, timeout=timeout_s)
    except ray.exceptions.RayActorError as error:
        return error
    except ray.exceptions.GetTimeoutError:
        pass
    return None


def failure(who: str, error: Exception, log: Path) -> RunFailed:
    """Returns what to raise for an actor that died or raised."""
    import ray

    if isinstance(error, Silent):
        return RunFailed(f"{who} {error}; its log: {log}")
    if isinstance(error, ray.exceptions.RayActorError):
        if error.actor_init_failed:
            return RunFailed(f"{who} failed: {_raised_in_init(error)}; its log: {log}")
        return RunFailed(f"{who} died ({cause_of_death(error)}); its log: {log}")
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    return RunFailed(f"{who} failed: {cause}; its log: {log}")


def _raised_in_init(error: Exception) -> str:
    """What a constructor raised: Ray keeps only its traceback, as text."""
    lines = str(error).splitlines()
    frames = [i for i, line in enumerate(lines) if line.startswith("  ")]
    raised = " ".join(lines[frames[-1] + 1 if frames else 0 :])
    kind, colon, message = raised.partition(": ")
    return f"{kind.rpartition('.')[2]}{colon}{message}"


def cause_of_death(error: Exception) -> str:
    """Ray's reason for an actor's death, in one line without its boilerplate."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in lines:
        if "exit" in line.lower() or "killed" in line.lower() or "out of memory" in line.lower():
            return line[:300]
    return lines[0][:300] if lines else type(error).__name__
