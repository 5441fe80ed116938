"""Splits the agents of a step among servers, once for each set of agents that act together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from muxrl.client.errors import AssignmentError, EpisodeMisuse
from muxrl.protocol.messages import ServerSpec
from muxrl.protocol.rows import Index, Layout, index_of

_MOST_KNOWN = 1_000
"""Most splits to keep: agents that come and go make one for each combination."""


@dataclass(frozen=True)
class Part:
    """One server's part of a step.

    Attributes:
        server_id: the server's id.
        place: the server's index among all servers.
        spec: the server's spec.
        agents: the server's acting agents, in the order of its spec.
        columns: columns of these agents, among all agents of the client.
        others: columns of the server's other agents; None: it has no others.
        whole: columns of all the server's agents.
        acting: where its acting agents are among all agents that act.
    """

    server_id: str
    place: int
    spec: ServerSpec
    agents: tuple[str, ...]
    columns: Index
    others: Index | None
    whole: slice
    acting: slice

    @cached_property
    def layout(self) -> Layout:
        """How the acting agents are ordered in rows."""
        return Layout(self.agents, self.spec.agents)

    @cached_property
    def named(self) -> list[str]:
        """The acting agents as a message names them: [] if all of the server's agents act."""
        return [] if self.others is None else list(self.agents)


class Split:
    """How a step of some agents is split by server.

    Attributes:
        agents: the agents that act.
        parts: one for each server that is asked.
        places: places of these servers.
        idle: places of the other servers.
        acting, columns: columns of the agents, as a list and as an index.
        wholes: columns of all agents of the servers that are asked.
        is_of_all: whether all agents of the servers that are asked act.
    """

    def __init__(self, assignment: Assignment, agents: Iterable[str]) -> None:
        acting = frozenset(agents)
        column_of = assignment.column_of
        parts: list[Part] = []
        num_acting = 0
        self.idle: list[int] = []
        self.wholes: list[slice] = []
        for place, (server_id, spec) in enumerate(assignment.specs.items()):
            mine = tuple(a for a in spec.agents if a in acting)
            if not mine:
                self.idle.append(place)
                continue
            others = [column_of[a] for a in spec.agents if a not in acting]
            columns = index_of([column_of[a] for a in mine])
            whole = assignment.wholes[place]
            acting_here = slice(num_acting, num_acting + len(mine))
            num_acting += len(mine)
            parts.append(
                Part(
                    server_id, place, spec, mine, columns,
                    index_of(others) if others else None, whole, acting_here,
                )
            )  # fmt: skip
            if self.wholes and self.wholes[-1].stop == whole.start:
                whole = slice(self.wholes.pop().start, whole.stop)
            self.wholes.append(whole)
        self.parts = tuple(parts)
        self.agents = tuple(a for part in parts for a in part.agents)
        self.places = index_of([part.place for part in parts])
        self.acting = [column_of[a] for a in self.agents]
        self.columns = index_of(self.acting)
        self.is_of_all = all(part.others is None for part in parts)


class Assignment:
    """Which server serves which agents, and how steps are split.

    Args:
        specs: the servers' specs, by server id.

    Raises:
        AssignmentError: two servers have the same agent.
    """

    def __init__(self, specs: Mapping[str, ServerSpec]) -> None:
        self.specs = specs
        self.server_of: dict[str, str] = {}
        self.place_of: dict[str, int] = {}
        """By agent: the place of its server."""
        self.wholes: list[slice] = []
        """By place of a server: the columns of its agents."""
        for place, (server_id, spec) in enumerate(specs.items()):
            first = len(self.server_of)
            self.wholes.append(slice(first, first + len(spec.agents)))
            for agent_id in spec.agents:
                self.place_of[agent_id] = place
                other = self.server_of.setdefault(agent_id, server_id)
                if other != server_id:
                    raise AssignmentError(
                        f"agent {agent_id!r} belongs to two servers, {other!r} and {server_id!r}"
                    )
        self.agents = tuple(self.server_of)
        self.column_of = {agent_id: column for column, agent_id in enumerate(self.agents)}
        self.known: dict[tuple[str, ...], Split] = {}
        """By agents that have acted together, in each order in which they came: the split."""

    def find(self, observations: Mapping[Any, Any]) -> tuple[Split, Mapping[str, Any]]:
        """Returns the split of a step, and its observations by agent name; see `name`.

        Raises:
            AssignmentError: an agent belongs to no server.
            EpisodeMisuse: observations are no dict, or two of its agents have the same name.
        """
        if type(observations) is not dict:
            check_by_agent("observations", observations)
        named = tuple(observations)
        split = self.known.get(named)
        if split is not None:
            return split, observations
        renamed = {self.name(agent_id): seen for agent_id, seen in observations.items()}
        if len(renamed) < len(observations):
            twice = next(a for a in observations if type(a) is not str and str(a) in observations)
            raise EpisodeMisuse(f"two of the agents that observe have the name {str(twice)!r}")
        return self.split(tuple(renamed)), renamed

    def split(self, agents: tuple[str, ...]) -> Split:
        """Returns the split of a step of these agents, which may be in any order."""
        split = self.known.get(agents)
        if split is None:
            in_order = tuple(sorted(agents, key=self.column_of.__getitem__))
            split = self.known.get(in_order)
            if split is None:
                split = Split(self, in_order)
            if len(self.known) >= _MOST_KNOWN:
                self.known.clear()
            self.known[agents] = self.known[in_order] = split
        return split

    def name(self, agent_id: object) -> str:
        """Returns an agent's name: its id, which may be a number, say, as text.

        Raises:
            AssignmentError: the agent belongs to no server.
        """
        name = str(agent_id)
        if name not in self.column_of:
            known = ", ".join(f"{a} ({s})" for a, s in self.server_of.items())
            raise AssignmentError(
                f"agent {agent_id!r} belongs to no server; agents with their servers: "
                f"{known or 'none'}"
            )
        return name


def check_by_agent(what: str, value: Any) -> None:
    """Raises `EpisodeMisuse` unless a value is a mapping: RLlib took a single agent's value."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise EpisodeMisuse(
            f'{what} must be a dict by agent, {{"agent": ...}}, even for a single agent; got '
            f"{repr(value)[:100]}"
            + ("; if all agents are done, call end_episode()" if value is True else "")
        )


def given_by_agent(what: str, value: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Returns a mapping, {} if it was left out; raises as `check_by_agent`."""
    if value is None:
        return {}
    check_by_agent(what, value)
    return value
