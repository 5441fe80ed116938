"""Which agents of one server play against each other: the mean return of both says nothing.

Only the simulation knows the sides, so they are read from the agents' names and returns. Agents
with numbered names (``seeker_0``, ``seeker_1``) are one part, others are one each; parts that
always return the same are one. These are sides if they are against each other in what they return:

- if the sum over the agents is the same in every episode, but not what it is made of, as in a game
  whose returns sum to zero, or
- if there are parts of several names, and the returns of two are opposed (correlation of at most
  `OPPOSED` over the episodes).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from muxrl.orchestrator.records.rows import AgentReturns
from muxrl.orchestrator.records.series import returns_by_episode
from muxrl.protocol.patterns import unnumbered

MAX_SIDES = 4
"""With more, each would want as many episodes as a server; they are judged together."""
OPPOSED = -0.5
"""Correlation at which two parts are against each other. That of unrelated normal returns is lower
in one of 86 samples of 20 episodes, and in none of 5,000 samples of 100."""
_MIN_EPISODES = 20
"""Of a correlation, or of a sum that is not zero; in fewer, chance finds one too often."""
_TOLERANCE = 1e-6  # of the largest return

Table = NDArray[np.float64]


def find_sides(played: Sequence[AgentReturns], agents: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Returns the sides of one server's agents; {} if they are not against each other.

    Args:
        played: each agent's return in each episode, under conditions that have the agents all
            alike: as learned, or at random. The first that shows sides counts. Put the random one
            first: two who have learned to the end may always draw, and show nothing.
        agents: of the server.

    Returns:
        Name to agents, in the simulation's order; two to `MAX_SIDES`.
    """
    for by_agent in played:
        parts, named = _opposing_parts(by_agent, agents)
        if 0 < len(parts) <= MAX_SIDES:
            return {_name(part, named): tuple(part) for part in parts}
    return {}


def _opposing_parts(
    by_agent: AgentReturns, agents: Sequence[str]
) -> tuple[list[list[str]], Mapping[str, Sequence[str]]]:
    """Returns the parts, none if they are not against each other; and the agents of each name."""
    present = [a for a in agents if np.isfinite(returns_by_episode(by_agent, [a])).any()]
    named: dict[str, list[str]] = {}
    for agent in present:
        named.setdefault(unnumbered(agent), []).append(agent)
    has_names = len(named) > 1
    parts = _merged(by_agent, named.values() if has_names else [[agent] for agent in present])
    if len(parts) < 2:
        return [], named
    rows = np.array([returns_by_episode(by_agent, part) for part in parts])
    if not (_cancels_out(by_agent, present) or (has_names and _is_opposed(rows))):
        return [], named
    return parts, named


def play_against_each_other(played: Sequence[AgentReturns], agents: Sequence[str]) -> bool:
    """Whether one server's agents play against each other, on however many sides.

    Args:
        played, agents: as for `find_sides`.
    """
    return any(_opposing_parts(by_agent, agents)[0] for by_agent in played)


def _merged(by_agent: AgentReturns, parts: Iterable[list[str]]) -> list[list[str]]:
    """Returns the parts; those with the same mean return in every episode become one."""
    merged: dict[str, list[str]] = {}
    for part in parts:
        row = returns_by_episode(by_agent, part) + 0.0  # no -0.0; as text NaN is itself
        merged.setdefault(str(row.tolist()), []).extend(part)
    return list(merged.values())


def _cancels_out(by_agent: AgentReturns, agents: Sequence[str]) -> bool:
    """Whether the agents' returns have the same sum in every episode that says anything."""
    table = np.array([returns_by_episode(by_agent, [agent]) for agent in agents])
    table = table[:, np.isfinite(table).any(axis=0)]
    scale = float(np.nanmax(np.abs(table)))
    sums = np.nansum(table, axis=0)
    if scale == 0 or np.ptp(sums) > _TOLERANCE * scale * len(agents):
        return False
    # A sum that never changes says nothing where no part of it does, unless it is zero.
    is_zero = bool(np.abs(sums).max() <= _TOLERANCE * scale * len(agents))
    if len(sums) < _MIN_EPISODES:
        return is_zero
    changes = bool((np.nanmax(table, axis=1) - np.nanmin(table, axis=1)).max() > _TOLERANCE * scale)
    return is_zero or changes


def _is_opposed(rows: Table) -> bool:
    """Whether the returns of any two parts ``[num_parts, num_episodes]`` are against each other."""
    for one, other in combinations(rows, 2):
        both = np.isfinite(one) & np.isfinite(other)
        if both.sum() < _MIN_EPISODES or not np.ptp(one[both]) or not np.ptp(other[both]):
            continue
        if np.corrcoef(one[both], other[both])[0, 1] <= OPPOSED:
            return True
    return False


def _name(part: Sequence[str], named: Mapping[str, Sequence[str]]) -> str:
    """The agents' common name, where they are all that have it; else their names together."""
    of_names = [name for name, agents in named.items() if set(agents) <= set(part)]
    whole = [agent for name in of_names for agent in named[name]]
    names = of_names if len(whole) == len(part) else list(part)
    return "+".join(names if len(names) <= 2 else [names[0], f"{len(names) - 1} more"])
