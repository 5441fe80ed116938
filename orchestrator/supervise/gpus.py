"""Which GPUs of this machine each server of a run gets."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from muxrl.orchestrator.config import ExperimentConfig
from muxrl.orchestrator.errors import ConfigError

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def check_gpus(*configs: ExperimentConfig) -> None:
    """Checks that this machine has the GPUs of runs.

    Raises:
        ConfigError: with a sentence for each server whose GPU is not there.
    """
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():  # then only that itself knows
        return
    problems: dict[str, None] = {}
    for config in configs:
        if not config.address:  # likewise
            problems |= dict.fromkeys(_given(config)[1])
    if problems:
        raise ConfigError(list(problems))


def gpu_environment(config: ExperimentConfig) -> dict[str, dict[str, str]]:
    """Returns the environment variables of servers with GPUs, by server id.

    A server has the parts of GPUs that it asks for to itself; one that is started again gets the
    same ones.
    """
    return _given(config)[0]


def _given(config: ExperimentConfig) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Returns the variables, and a sentence for each server whose GPU is not there."""
    found: dict[str, dict[str, str]] = {}
    problems: list[str] = []
    wanted = {s: server.resources.num_gpus for s, server in config.servers.items()}
    if not any(wanted.values()):
        return found, problems
    here = _names_here()
    free = [1.0] * len(here)  # of each; a part of one is not on two of them
    for server_id, num_gpus in wanted.items():
        places = _place([1.0] * int(num_gpus) + [num_gpus % 1] * (num_gpus % 1 > 0), free)
        if places:
            found[server_id] = {_VISIBLE: ",".join(here[i] for i in places)}
        elif places is None:
            left = ", ".join(f"{of_one:g}" for of_one in free)
            rest = f", of which the servers before it leave {left}" if sum(free) < len(here) else ""
            problems.append(
                f"server {server_id!r}: wants {num_gpus:g} GPU{'s' if num_gpus > 1 else ''} "
                f"(resources.num_gpus), this machine has {len(here)}{rest}; leave it out to learn "
                "on the CPU"
            )
    return found, problems


def _names_here() -> list[str]:
    """Returns what each GPU is called in the variable that says which ones a process sees."""
    import torch  # it takes seconds, and only who wants a GPU waits for it

    num = torch.cuda.device_count()
    given = [name for name in os.environ.get(_VISIBLE, "").split(",") if name]
    return (given or [str(i) for i in range(num)])[:num]


def _place(parts: Sequence[float], free: list[float]) -> list[int] | None:
    """Takes each part from the GPU that it fills best; returns which ones, None if not all fit."""
    left, places = list(free), []
    for part in parts:
        able = [i for i, of_one in enumerate(left) if of_one > part - 1e-6]
        if not able:
            return None
        best = min(able, key=left.__getitem__)
        left[best] = round(left[best] - part, 6)
        places.append(best)
    free[:] = left
    return places
