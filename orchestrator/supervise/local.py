"""Where the processes of a run go: this machine, or others."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Protocol

from muxrl.orchestrator.config import ExperimentConfig
from muxrl.orchestrator.supervise.gpus import gpu_environment
from muxrl.orchestrator.supervise.worker import Caller, Worker


class Workers(Protocol):
    """Where the processes of a run are."""

    def start(
        self, name: str, process: type, *arguments: Any, log: Path, is_forked: bool = False
    ) -> Caller:
        """Starts a process, and returns at once.

        Args:
            name: the server's id, or what the process is called.
            process: the class of its object; see `Worker`.
            arguments: with which that is made.
            log: file that its output goes to.
            is_forked: whether it may be a copy of the fork server.
        """

    def check(self) -> None:
        """Looks whether what starts processes still lives.

        Raises:
            RunFailed: it is lost.
        """


def workers_for(config: ExperimentConfig) -> Workers:
    """Returns where the processes of a run go: to the machines of the Ray that this process is
    connected to, if it has several or hands out GPUs; else they stay here."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        wants_gpu = any(server.resources.num_gpus for server in config.servers.values())
        if wants_gpu or sum(node["Alive"] for node in ray.nodes()) > 1:
            from muxrl.orchestrator.supervise.cluster import ClusterWorkers

            return ClusterWorkers(config)
    return LocalWorkers(config)


class LocalWorkers:
    """Those of this machine; see `Workers`.

    Args:
        config: of the run.
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
        """There is nothing to look after."""
