"""Chooses where the processes of a run are started: on this machine, or on a Ray cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Protocol

from muxrl.orchestrator.config import ExperimentConfig
from muxrl.orchestrator.supervise.gpus import gpu_environment
from muxrl.orchestrator.supervise.worker import Caller, Worker


class Workers(Protocol):
    """Starts the processes of a run."""

    def start(
        self, name: str, process: type, *arguments: Any, log: Path, is_forked: bool = False
    ) -> Caller:
        """Starts a process, and returns at once.

        Args:
            name: the server's id, or the name of another process.
            process: the class of its object; see `Worker`.
            arguments: arguments of that class.
            log: file to which its output goes.
            is_forked: whether it may be a copy of the fork server.
        """

    def check(self) -> None:
        """Checks that processes can still be started.

        Raises:
            RunFailed: the cluster that starts them is lost.
        """


def workers_for(config: ExperimentConfig) -> Workers:
    """Returns what starts the processes of a run: on the Ray cluster that this process is connected
    to, if it has several machines or the run wants GPUs; otherwise on this machine."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        wants_gpu = any(server.resources.num_gpus for server in config.servers.values())
        if wants_gpu or sum(node["Alive"] for node in ray.nodes()) > 1:
            from muxrl.orchestrator.supervise.cluster import ClusterWorkers

            return ClusterWorkers(config)
    return LocalWorkers(config)


class LocalWorkers:
    """Starts processes on this machine; see `Workers`.

    Args:
        config: the run's config.
    """

    def __init__(self, config: ExperimentConfig) -> None:
        self._gpus = gpu_environment(config)

    def start(
        self, name: str, process: type, *arguments: Any, log: Path, is_forked: bool = False
    ) -> Caller:
        """See `Workers`."""
        env = self._gpus.get(name)
        return Worker(process, arguments, log, is_forked=is_forked and env is None, env=env)

    def check(self) -> None:
        """Does nothing: this machine can always start processes."""
