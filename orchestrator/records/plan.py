"""Which server of a run has which agents: its ``plan.json``, as it is read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PlannedServer:
    """Which agents a server was to play, and how."""

    algorithm: str
    agents: tuple[str, ...]
    learns: bool = True
    """Whether its policies changed during the run."""
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False)
    """Team to its agents; some runs are older than these."""


@dataclass(frozen=True)
class Plan:
    """What a run was to be; fields of the file that are not here are of no use to readers."""

    servers: Mapping[str, PlannedServer]
    assignment: str = ""
    """Which algorithm has which agents, canonical."""
    seed: int | None = None
    metrics: tuple[str, ...] = ()
    """Those that the config asks for."""
    is_external: bool = False
    """Whether somebody else's simulation played, on seeds that it chose."""

    @property
    def server_of(self) -> dict[str, str]:
        """By agent its server."""
        return {agent: s for s, server in self.servers.items() for agent in server.agents}
