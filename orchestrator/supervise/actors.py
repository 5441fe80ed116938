"""The Ray actors of a run: started, asked, ended, and why one died or failed."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from muxrl.client.env_loop import SimulationFailed
from muxrl.orchestrator.errors import ProcessEnded, RunFailed, Silent
from muxrl.orchestrator.supervise.fork_server import forked_worker
from muxrl.orchestrator.supervise.main_thread import HOOK
from muxrl.orchestrator.supervise.process import ProcessId
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
        is_forked: whether it comes from the `fork_server`, if there is one: it needs torch, and no
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


def is_dead(answer: object) -> bool:
    """Whether an `outcome` says that the process is gone, or the one that it stands for."""
    import ray

    is_end = isinstance(getattr(answer, "cause", None), ProcessEnded)
    return is_end or isinstance(answer, ray.exceptions.RayActorError)


def outcome(ref: Any, timeout_s: float | None = None) -> Any:
    """Returns an actor's answer, or the exception that says why there is none.

    Raises:
        ray.exceptions.GetTimeoutError: it did not come within `timeout_s`.
    """
    import ray

    try:
        return ray.get(ref, timeout=timeout_s)
    except (ray.exceptions.RayTaskError, ray.exceptions.RayActorError) as error:
        return error


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
    if isinstance(cause, SimulationFailed):  # what the user can mend comes first
        return RunFailed(f"{cause}; so {who} failed; its log: {log}", cause.place)
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
