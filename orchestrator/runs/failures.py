"""Why a run failed: who died or gave up, of what, and where its log is."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class RunFailed(Exception):
    """A process of the run died or gave up; the sentence names it and its log."""


def answer_of(ref: Any, timeout_s: float | None, who: str, log: Path) -> Any:
    """Returns an actor's answer.

    Args:
        ref: what Ray gave for the call.
        timeout_s: None waits for ever.
        who: the actor, for people.
        log: its file.

    Raises:
        RunFailed: it died, raised, or did not answer in time.
    """
    import ray

    try:
        return ray.get(ref, timeout=timeout_s)
    except ray.exceptions.GetTimeoutError:
        raise RunFailed(f"{who} did not answer for {timeout_s:g} s; its log: {log}") from None
    except (ray.exceptions.RayTaskError, ray.exceptions.RayActorError) as error:
        raise failure(who, error, log) from error


def death_of(ref: Any, timeout_s: float) -> Exception | None:
    """Returns how an actor died that was asked something; None if it lives, or nobody can tell yet.

    Raises:
        Exception: of its own, which it answered with.
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
