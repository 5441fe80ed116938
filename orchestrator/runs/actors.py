"""The Ray actors of a run: started, asked, and why one died or failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from muxrl.orchestrator.errors import RunFailed
from muxrl.orchestrator.runs.ray_session import worker_environment


def start_actor(process: type, *arguments: Any, scheduling: Any, **options: Any) -> Any:
    """Starts a process of its own for an object, and returns its handle at once.

    Args:
        process: the object's class.
        arguments: with which it is made there.
        scheduling: Ray's scheduling strategy; None: Ray's own choice.
        options: of the actor, as Ray takes them.
    """
    import ray

    actor = ray.remote(process).options(
        max_restarts=0,
        runtime_env={"env_vars": worker_environment()},
        scheduling_strategy=scheduling,
        **options,
    )
    return actor.remote(*arguments)


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

    if isinstance(error, ray.exceptions.RayActorError):
        return RunFailed(f"{who} died ({cause_of_death(error)}); its log: {log}")
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    return RunFailed(f"{who} failed: {cause}; its log: {log}")


def cause_of_death(error: Exception) -> str:
    """Ray's reason for an actor's death, in one line without its boilerplate."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in lines:
        if "exit" in line.lower() or "killed" in line.lower() or "out of memory" in line.lower():
            return line[:300]
    return lines[0][:300] if lines else type(error).__name__
