"""Compares the memory that an experiment's full replays will take with the memory that is free.

A replay fills for minutes or days before the machine runs out of memory, and the system then kills
a server. The size of a full replay follows from settings and spaces, so it is known before anything
starts. Of a replay of whole episodes only the size per env step is known; how long episodes are,
the run will show.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from muxrl.orchestrator.config.experiment import Experiment
from muxrl.servers.lookup import find
from muxrl.servers.trainers.budget import ReplaySize

_SHOWN_LENGTH = 100
"""Length of an episode (env steps) that is assumed for shown sizes while it is not known."""
_CGROUP = Path("/sys/fs/cgroup")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class _Replay(NamedTuple):
    server_id: str
    size: ReplaySize


def find_replays(experiment: Experiment) -> list[_Replay]:
    """Returns the size of the replay of each server that has one."""
    found = []
    for server_id, plan in experiment.learning.items():
        size = find(plan.algorithm).find_replay_size(plan)
        if size is not None:
            found.append(_Replay(server_id, size))
    return found


def describe_replays(experiment: Experiment) -> Iterator[str]:
    """Yields a sentence on the size of each replay, and one on the memory that is free."""
    replays = find_replays(experiment)
    for server_id, size in replays:
        length = f" if these have {_SHOWN_LENGTH} env steps each" if size.per_env_step else ""
        yield (
            f"server {server_id!r} keeps a replay of {size.capacity}: at least "
            f"{shown(size.when_full(_SHOWN_LENGTH))} when it is full{length}"
        )
        if size.longest:
            yield (
                f"server {server_id!r} pads the episodes of an update to the longest of them: if "
                f"one has {size.longest:,} env steps or more (max_sequence_steps), a batch takes "
                f"at least {shown(size.update_bytes)}, and the networks several times as much"
            )
    if replays and not experiment.config.address:
        yield f"free memory on this machine: {shown(free_bytes())}"


def find_overflow(experiment: Experiment, episode_length: float | None = None) -> Iterator[str]:
    """Yields a sentence if the replays do not fit into the free memory of this machine.

    Yields nothing for a run on a cluster, since its machines are not known here.

    Args:
        experiment: resolved.
        episode_length: the mean, in env steps; None: not known yet.
    """
    replays = find_replays(experiment)
    if experiment.config.address or not replays:
        return
    free = free_bytes()
    fixed = sum(size.num_bytes for _, size in replays if not size.per_env_step)
    per_step = sum(size.num_bytes for _, size in replays if size.per_env_step)
    settings = ", ".join(dict.fromkeys(f"{s}: {size.setting}" for s, size in replays))
    who = ", ".join(repr(server_id) for server_id, _ in replays)
    replay = "the replay of server" if len(replays) == 1 else "the replays of servers"
    have, problem = f"{shown(free)} are free on this machine", ""
    if episode_length is not None:
        if per_step and (total := fixed + per_step * episode_length) > free:
            each = f"at {episode_length:,.1f} env steps an episode"
            problem = f"will take at least {shown(total)} when full, {each}, and {have}"
    elif fixed > free:
        problem = f"will take at least {shown(fixed)} when full, and {have}"
    elif per_step and fixed + per_step * _SHOWN_LENGTH > free:
        longest = f"where episodes are longer than {int((free - fixed) / per_step):,} env steps"
        problem = f"will not fit into the {shown(free)} that are free on this machine {longest}"
    if problem:
        yield f"{replay} {who} {problem}; lower the capacity ({settings})"


def free_bytes() -> int:
    """Returns the bytes that are free without swapping, within the container's limit."""
    free: int = psutil.virtual_memory().available
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        return free if limit == "max" else max(0, min(free, int(limit) - used))
    except (OSError, ValueError):  # another system, or another version of control groups
        return free


def shown(num_bytes: float) -> str:
    """Returns a number of bytes as text for people, such as "1.5 GiB"."""
    for unit in _UNITS[:-1]:
        if num_bytes < 1024:
            return f"{num_bytes:.3g} {unit}" if num_bytes < 1000 else f"{num_bytes:.0f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} {_UNITS[-1]}"
