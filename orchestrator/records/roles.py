"""The roles of a run's agents, whose mean returns the live page and trackers show."""

from __future__ import annotations

from dataclasses import dataclass

from muxrl.orchestrator.records.plan import Plan
from muxrl.protocol.patterns import unnumbered

_MOST_ROLES = 4
"""Of a server: with more, names that end in numbers say nothing of roles."""


@dataclass(frozen=True)
class Role:
    """Agents of one server that are shown as one curve, the mean over them."""

    server_id: str
    name: str
    """"" where it is all agents of the server."""
    agents: tuple[str, ...]


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
