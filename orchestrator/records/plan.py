"""Which server of a run has which agents, as its ``plan.json`` says, and the agents' roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from muxrl.protocol.patterns import unnumbered

_MOST_ROLES = 4
"""Of a server: with more, names that end in numbers say nothing of roles."""


@dataclass(frozen=True)
class PlannedServer:
    """Which agents a server was to play, and how."""

    algorithm: str
    agents: tuple[str, ...]
    learns: bool = True
    """Whether its policies changed during the run."""
    shadow: str = ""
    """The server from whose agents' steps it learned, without acting; "": it acted."""
    replaced_by: str = ""
    """The shadow that acts in its place since the run was resumed; "": none."""
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False)
    """Team to its agents; some runs are older than these."""
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False)
    """``settings`` and ``model`` that the algorithm had where the config gives none; likewise."""


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
    def acting(self) -> dict[str, PlannedServer]:
        """Those that act now: each agent is of one of them."""
        promoted = {server.replaced_by for server in self.servers.values()}
        return {
            s: server
            for s, server in self.servers.items()
            if not server.replaced_by and (not server.shadow or s in promoted)
        }

    @property
    def server_of(self) -> dict[str, str]:
        """By agent its server."""
        return {agent: s for s, server in self.acting.items() for agent in server.agents}


@dataclass(frozen=True)
class Role:
    """Agents of one server that are shown as one curve, the mean over them."""

    server_id: str
    name: str
    """"" where it is all agents of the server."""
    agents: tuple[str, ...]

    @property
    def key(self) -> str:
        """SERVER, or SERVER/ROLE."""
        return f"{self.server_id}/{self.name}" if self.name else self.server_id


def roles_of(plan: Plan) -> list[Role]:
    """Returns the roles of a run's servers: the groups, else the agents of one name.

    ``predator_0`` and ``predator_1`` have the name ``predator``. A server with one role, or more
    than four, is shown as a whole.
    """
    roles = []
    for server_id, server in plan.servers.items():
        group_of = {a: g for g, members in server.groups.items() for a in members}
        by_name: dict[str, list[str]] = {}
        for agent in server.agents:
            name = group_of.get(agent) or unnumbered(agent)
            by_name.setdefault(name, []).append(agent)
        if not 1 < len(by_name) <= _MOST_ROLES:
            by_name = {"": list(server.agents)}
        roles += [Role(server_id, name, tuple(agents)) for name, agents in by_name.items()]
    return roles


def groups_of(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Returns the agents of each server that acts, and of each role (`Role.key`)."""
    acting = plan.acting
    servers = {server_id: server.agents for server_id, server in acting.items()}
    return servers | {r.key: r.agents for r in roles_of(plan) if r.server_id in acting}
