"""Describes which server of a run has which agents (``plan.json``), and the agents' roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from muxrl.protocol.patterns import unnumbered

_MOST_ROLES = 4
"""Most roles of a server; with more, the agents' names do not tell roles."""


@dataclass(frozen=True)
class PlannedServer:
    """The agents that a server was to play, and its algorithm."""

    algorithm: str
    agents: tuple[str, ...]
    learns: bool = True
    """Whether its policies changed during the run."""
    shadow: str = ""
    """The acting server from whose agents' steps this one learned; "": this one acted."""
    replaced_by: str = ""
    """The shadow that replaced this server when the run was resumed; "": none."""
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False)
    """Team to its agents; {} in older runs, which did not record teams."""
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False)
    """Default ``settings`` and ``model`` of the algorithm; {} in older runs."""


@dataclass(frozen=True)
class Plan:
    """The plan of a run: those fields of ``plan.json`` that readers of a run need."""

    servers: Mapping[str, PlannedServer]
    assignment: str = ""
    """The canonical string of which algorithm has which agents."""
    seed: int | None = None
    metrics: tuple[str, ...] = ()
    """The names of the metrics that the config asks for."""
    is_external: bool = False
    """Whether an external simulation played, on seeds that it chose."""

    @property
    def acting(self) -> dict[str, PlannedServer]:
        """The servers that act now, by id; each agent belongs to one of them."""
        promoted = {server.replaced_by for server in self.servers.values()}
        return {
            s: server
            for s, server in self.servers.items()
            if not server.replaced_by and (not server.shadow or s in promoted)
        }

    @property
    def server_of(self) -> dict[str, str]:
        """By agent: the id of the server that acts for it."""
        return {agent: s for s, server in self.acting.items() for agent in server.agents}


@dataclass(frozen=True)
class Role:
    """Agents of one server whose mean is shown as one curve."""

    server_id: str
    name: str
    """Name of the role; "" if it has all agents of the server."""
    agents: tuple[str, ...]

    @property
    def key(self) -> str:
        """The role's name in records and results: SERVER, or SERVER/ROLE."""
        return f"{self.server_id}/{self.name}" if self.name else self.server_id


def roles_of(plan: Plan) -> list[Role]:
    """Returns the roles of a run's servers: their groups, else the agents that share a name.

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
    """Returns the agents of each acting server, and of each of its roles (by `Role.key`)."""
    acting = plan.acting
    servers = {server_id: server.agents for server_id, server in acting.items()}
    return servers | {r.key: r.agents for r in roles_of(plan) if r.server_id in acting}
