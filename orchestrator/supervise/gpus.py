"""Assigns the GPUs of this machine to the servers of a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from muxrl.orchestrator.config import ExperimentConfig
from muxrl.orchestrator.errors import ConfigError

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def check_gpus(*configs: ExperimentConfig) -> None:
    """Checks that this machine has the GPUs that runs ask for.

    Raises:
        ConfigError: with a sentence for each server whose GPU is missing.
    """
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():  # then only Ray knows which GPUs there are
        return
    problems: dict[str, None] = {}
    for config in configs:
        if not config.address:  # nor are the GPUs of a cluster known here
            problems |= dict.fromkeys(_given(config)[1])
    if problems:
        raise ConfigError(list(problems))


def gpu_environment(config: ExperimentConfig) -> dict[str, dict[str, str]]:
    """Returns the environment variables of servers with GPUs, by server id.

    No other server of the run gets the parts of GPUs that a server asks for. A server that is
    started again gets the same GPUs.
    """
    return _given(config)[0]


def _given(config: ExperimentConfig) -> tuple[dict[str, dict[str, str]], list[str]]:
    """Returns the variables, and a sentence for each server whose GPU is missing."""
    found: dict[str, dict[str, str]] = {}
    problems: list[str] = []
    wanted = {s: server.resources.num_gpus for s, server in config.servers.items()}
    if not any(wanted.values()):
        return found, problems
    here = _names_here()
    free = [1.0] * len(here)  # by GPU; a part of a GPU is never split over two GPUs
    for server_id, num_gpus in wanted.items():
        places = _place([1.0] * int(num_gpus) + [num_gpus % 1] * (num_gpus % 1 > 0), free)
        if places:
            found[server_id] = {_VISIBLE: ",".join(here[i] for i in places)}
        elif places is None:
            left = ", ".join(f"{of_one:g}" for of_one in free)
            rest = f", of which earlier servers leave {left}" if sum(free) < len(here) else ""
            problems.append(
                f"server {server_id!r}: wants {num_gpus:g} GPU{'s' if num_gpus > 1 else ''} "
                f"(resources.num_gpus), but this machine has {len(here)}{rest}; leave the key out "
                "to learn on the CPU"
            )
    return found, problems


def _names_here() -> list[str]:
    """Returns the name of each GPU, as CUDA_VISIBLE_DEVICES lists it."""
    import torch  # takes seconds, so only runs that want a GPU import it

    num = torch.cuda.device_count()
    given = [name for name in os.environ.get(_VISIBLE, "").split(",") if name]
    return (given or [str(i) for i in range(num)])[:num]


def _place(parts: Sequence[float], free: list[float]) -> list[int] | None:
    """Takes each part from the GPU that it fills best.

    Returns:
        The number of a GPU for each part; None if not all parts fit.
    """
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
