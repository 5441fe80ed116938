"""Who acts in a step, and what each server has of it: made once for each set of agents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from muxrl.client.errors import AssignmentError, EpisodeMisuse
from muxrl.protocol.messages import ServerSpec
from muxrl.protocol.rows import Index, Layout, index_of

_MOST_KNOWN = 1_000
"""Agents that come and go make a split of each combination."""


@dataclass(frozen=True)
class Part:
    """What one server has of a step.

    Attributes:
        server_id: whose part it is.
        place: of the server among all.
        spec: the server's.
        agents: its acting agents, in the order of its spec.
        columns: theirs among all agents of the client.
        others: columns of its other agents; None: it has none.
        whole: columns of all its agents.
        acting: its acting agents among all that act.
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
        """How its agents are ordered in rows."""
        return Layout(self.agents, self.spec.agents)

    @cached_property
    def named(self) -> list[str]:
        """Its agents as a message names them."""
        return [] if self.others is None else list(self.agents)


class Split:
    """How a step of some agents is split by server.

    Attributes:
        agents: who acts.
        parts: of the servers that are asked.
        places: of these servers.
        idle: places of the others.
        acting, columns: of the agents, one by one and as an index.
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
    """Knows all agents of a client, and how steps are split.

    Args:
        specs: by server id.

    Raises:
        AssignmentError: two servers have the same agent.
    """

    def __init__(self, specs: Mapping[str, ServerSpec]) -> None:
        self.specs = specs
        self.server_of: dict[str, str] = {}
        self.place_of: dict[str, int] = {}
        """By agent, the place of its server."""
        self.wholes: list[slice] = []
        """By place of a server: its agents' columns."""
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
        """By agents that have acted together, in whatever order they came."""

    def find(self, observations: Mapping[Any, Any]) -> tuple[Split, Mapping[str, Any]]:
        """Returns how a step is split, and its observations by the agents' own names.

        Raises:
            AssignmentError: an agent belongs to no server.
            EpisodeMisuse: observations are no dict, or two agents in it have one name.
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
            raise EpisodeMisuse(f"two agents that observe are called {str(twice)!r}")
        return self.split(tuple(renamed)), renamed

    def split(self, agents: tuple[str, ...]) -> Split:
        """Returns how a step of these agents is split, in whatever order they are."""
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
        """Returns an agent's name, of which its id may be the number, say; see `AdaptedEnv`.

        Raises:
            AssignmentError: it belongs to no server.
        """
        name = str(agent_id)
        if name not in self.column_of:
            known = ", ".join(f"{a} ({s})" for a, s in self.server_of.items())
            raise AssignmentError(
                f"agent {agent_id!r} belongs to no server; assigned are: {known or 'none'}"
            )
        return name


def check_by_agent(what: str, value: Any) -> None:
    """Raises `EpisodeMisuse` unless a value is a mapping: RLlib's verbs took one of one agent."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise EpisodeMisuse(
            f'{what} are a dict by agent, {{"agent": ...}}, also if there is one agent; got '
            f"{repr(value)[:100]}"
            + ("; where all are done, call end_episode()" if value is True else "")
        )


def given_by_agent(what: str, value: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Returns what may be left out; raises as `check_by_agent`."""
    if value is None:
        return {}
    check_by_agent(what, value)
    return value
