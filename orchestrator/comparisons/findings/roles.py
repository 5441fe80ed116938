"""Whose returns are measured: roles, teams, single agents, and all agents together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from muxrl.orchestrator.comparisons.findings.compared_runs import ComparedRun
from muxrl.orchestrator.config.patterns import match
from muxrl.orchestrator.config.problems import listed
from muxrl.orchestrator.errors import CannotCompare
from muxrl.orchestrator.evaluations.evaluated import unnumbered
from muxrl.orchestrator.records.agent_returns import (
    AgentReturns,
    Floats,
    returns_by_episode,
)

Kind = Literal["role", "team", "agent", "total"]


@dataclass(frozen=True)
class Subject:
    """Some agents whose return is measured.

    Attributes:
        kind: the return of a role, team or agent is the mean over its agents, that of "total" the
            sum over all agents.
        name: of the role, team or agent.
        agents: whose return it is.
    """

    kind: Kind
    name: str
    agents: tuple[str, ...]

    @property
    def key(self) -> str:
        """Its name among all subjects: ``role:prey``, ``total``."""
        return self.kind if self.kind == "total" else f"{self.kind}:{self.name}"

    @property
    def title(self) -> str:
        """Its name with the number of agents, for headings."""
        many = {"role": "mean over", "team": "mean over", "total": "sum over"}
        if len(self.agents) == 1:
            return self.name
        return f"{self.name} ({many[self.kind]} {len(self.agents)} agents)"

    def returns(self, by_agent: AgentReturns) -> Floats:
        """Returns one number for each episode, NaN where no agent took part: ``[num_episodes]``."""
        return returns_by_episode(by_agent, self.agents, is_sum=self.kind == "total")


def find_roles(
    runs: Sequence[ComparedRun], named: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Returns each role's agents, in the simulation's order.

    Args:
        runs: of one simulation.
        named: role to agent patterns, from a sweep or the user. The other agents form roles by
            themselves: agents that share a server in every run are one role.

    Raises:
        CannotCompare: a pattern matches no agent, an agent is in two roles, or a run has a role's
            agents on several servers.
    """
    agents = simulation_order(runs)
    roles: dict[str, tuple[str, ...]] = {}
    owner: dict[str, str] = {}
    for role, patterns in named.items():
        members, idle = match(patterns, agents)
        if idle:
            raise CannotCompare(
                f"role {role!r}: {idle[0]!r} matches no agent; the simulation has {listed(agents)}"
            )
        for agent in members:
            if agent in owner:
                raise CannotCompare(
                    f"agent {agent!r} is in the roles {owner[agent]!r} and {role!r}"
                )
            owner[agent] = role
        for run in runs:
            servers = {run.server_of[agent] for agent in members}
            if len(servers) > 1:
                raise CannotCompare(
                    f"run {run.name!r} has the agents of role {role!r} on the servers "
                    f"{listed(sorted(servers))}; a role is played by one server in every run"
                )
        roles[role] = tuple(a for a in agents if a in members)
    together: dict[tuple[str, ...], list[str]] = {}
    for agent in agents:
        if agent not in owner:
            together.setdefault(tuple(run.server_of[agent] for run in runs), []).append(agent)
    roles.update(_named(runs, list(together.values()), taken=roles))
    return roles


def find_subjects(
    runs: Sequence[ComparedRun], roles: Mapping[str, tuple[str, ...]]
) -> tuple[Subject, ...]:
    """Returns the roles, the total, teams that are not roles, and agents that are not roles."""
    agents = simulation_order(runs)
    found = [Subject("role", role, members) for role, members in roles.items()]
    if len(agents) > 1:
        found.append(Subject("total", "all agents", tuple(agents)))
    seen = {frozenset(members) for members in roles.values()}
    for run in runs:
        for server in run.config.servers.values():
            for team, patterns in server.groups.items():
                members = tuple(match(patterns, agents)[0])
                if len(members) > 1 and frozenset(members) not in seen:
                    seen.add(frozenset(members))
                    found.append(Subject("team", team, members))
    alone = {members[0] for members in roles.values() if len(members) == 1}
    found += [Subject("agent", agent, (agent,)) for agent in agents if agent not in alone]
    return tuple(found)


def simulation_order(runs: Sequence[ComparedRun]) -> list[str]:
    """Returns all agents, in the order in which the first run's evaluation has them."""
    measured = runs[0].points[-1].returns[None]
    return [*measured, *sorted(set(runs[0].server_of) - set(measured))]


def _named(
    runs: Sequence[ComparedRun], groups: Sequence[Sequence[str]], taken: Mapping[str, object]
) -> dict[str, tuple[str, ...]]:
    """Names each group: "prey" for "prey_0" and "prey_1", if no other group has such agents.

    Else after the server that serves exactly them in every run; else by all of their names.
    """
    stems = [{unnumbered(agent) for agent in members} for members in groups]
    named: dict[str, tuple[str, ...]] = {}
    for members, ours in zip(groups, stems, strict=True):
        stem = next(iter(ours))
        servers = {run.server_of[members[0]] for run in runs}
        server = next(iter(servers))
        if len(ours) == 1 and sum(stem in theirs for theirs in stems) == 1:
            name = stem
        elif len(servers) == 1 and all(
            set(run.recorded.servers[server].agents) == set(members) for run in runs
        ):
            name = server
        else:
            name = "+".join(members)
        named["+".join(members) if name in taken or name in named else name] = tuple(members)
    return named
