"""Servers that play what others have learned, and cannot learn themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from muxrl.servers.algorithms.registry import get_algorithm
from muxrl.servers.checkpoint import Checkpoint
from muxrl.servers.config import ServerConfig


def freeze(
    server: ServerConfig, checkpoint: Path, trained_by: str | None, *, should_explore: bool
) -> ServerConfig:
    """Returns a server that acts for the same agents with the policies of a checkpoint.

    Args:
        server: the one that learned.
        checkpoint: its folder.
        trained_by: the algorithm, None if unknown.
        should_explore: whether stochastic policies are sampled; value-based ones are greedy in
            any case.

    Raises:
        AlgorithmProblem: there is no such algorithm.
    """
    can_sample = trained_by is None or get_algorithm(trained_by).samples_actions
    return ServerConfig(
        algorithm="FROZEN",
        agents=server.agents,
        label=label_of(server),
        policies=server.policies,
        groups=server.groups,
        settings={
            "checkpoint": str(checkpoint.absolute()),
            "should_explore": should_explore and can_sample,
        },
        use_global_state=server.use_global_state,
        late_members=server.late_members,
        resources=server.resources,
        limits=server.limits,
    )


def on_free_port(server: ServerConfig) -> ServerConfig:
    """Returns a server with fixed policies as muxrl serves it again, for itself alone.

    The run's own port may be taken by the next run, and no one else should connect.
    """
    return replace(server, host="127.0.0.1", port=0, token="")


def label_of(server: ServerConfig) -> str:
    """Returns what stands for a server in assignments: the algorithm that trained its policies.

    Raises:
        AlgorithmProblem: its checkpoint cannot be read.
    """
    if server.label or server.algorithm.upper() != "FROZEN":
        return server.label or server.algorithm
    return Checkpoint.open(Path(server.settings.get("checkpoint", ""))).algorithm or ""
