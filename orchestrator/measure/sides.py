"""Finds which agents of one server play against each other: their mean return says nothing.

Only the simulation knows the sides, so they are inferred from the agents' names and returns. Agents
with numbered names (``seeker_0``, ``seeker_1``) form one part, any other agent is a part by itself,
and parts with always equal returns are joined. The parts are sides if their returns are opposed:

- the sum over the agents is the same in every episode although its terms change, as in a zero-sum
  game, or
- the parts have several names, and the returns of two parts have a correlation of at most `OPPOSED`
  over the episodes.
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
"""Most sides that are judged one by one, each with as many episodes as a server; more are judged
together."""
OPPOSED = -0.5
"""Correlation up to which two parts count as opposed. Unrelated normal returns reach it in one of
86 samples of 20 episodes, and in none of 5,000 samples of 100."""
_MIN_EPISODES = 20
"""Least episodes for a correlation, or for a constant sum other than zero; fewer too often show
one by chance."""
_TOLERANCE = 1e-6  # relative to the largest return

Table = NDArray[np.float64]


def find_sides(played: Sequence[AgentReturns], agents: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Returns the sides of one server's agents; {} if they do not play against each other.

    Args:
        played: of each condition: each agent's return in each episode. All the agents act
            alike in a condition, as learned or at random. The first condition that shows sides
            counts. Put the random one first: agents that have learned well may always draw, and
            show nothing.
        agents: the agents of the server.

    Returns:
        Name to agents, in the simulation's order; two to `MAX_SIDES` sides.
    """
    for by_agent in played:
        parts, named = _opposing_parts(by_agent, agents)
        if 0 < len(parts) <= MAX_SIDES:
            return {_name(part, named): tuple(part) for part in parts}
    return {}


def _opposing_parts(
    by_agent: AgentReturns, agents: Sequence[str]
) -> tuple[list[list[str]], Mapping[str, Sequence[str]]]:
    """Returns the parts, [] if they are not opposed, and the agents of each name."""
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
    """Whether one server's agents play against each other, on any number of sides.

    Args:
        played, agents: as for `find_sides`.
    """
    return any(_opposing_parts(by_agent, agents)[0] for by_agent in played)


def _merged(by_agent: AgentReturns, parts: Iterable[list[str]]) -> list[list[str]]:
    """Joins the parts that have the same mean return in every episode."""
    merged: dict[str, list[str]] = {}
    for part in parts:
        row = returns_by_episode(by_agent, part) + 0.0  # -0.0 becomes 0.0; as text, NaN equals NaN
        merged.setdefault(str(row.tolist()), []).extend(part)
    return list(merged.values())


def _cancels_out(by_agent: AgentReturns, agents: Sequence[str]) -> bool:
    """Whether the agents' returns have the same sum in every episode, which shows sides."""
    table = np.array([returns_by_episode(by_agent, [agent]) for agent in agents])
    table = table[:, np.isfinite(table).any(axis=0)]
    scale = float(np.nanmax(np.abs(table)))
    sums = np.nansum(table, axis=0)
    if scale == 0 or np.ptp(sums) > _TOLERANCE * scale * len(agents):
        return False
    # A constant sum other than zero shows nothing if its terms are constant, too.
    is_zero = bool(np.abs(sums).max() <= _TOLERANCE * scale * len(agents))
    if len(sums) < _MIN_EPISODES:
        return is_zero
    changes = bool((np.nanmax(table, axis=1) - np.nanmin(table, axis=1)).max() > _TOLERANCE * scale)
    return is_zero or changes


def _is_opposed(rows: Table) -> bool:
    """Whether the returns of any two parts ``[num_parts, num_episodes]`` are opposed."""
    for one, other in combinations(rows, 2):
        both = np.isfinite(one) & np.isfinite(other)
        if both.sum() < _MIN_EPISODES or not np.ptp(one[both]) or not np.ptp(other[both]):
            continue
        if np.corrcoef(one[both], other[both])[0, 1] <= OPPOSED:
            return True
    return False


def _name(part: Sequence[str], named: Mapping[str, Sequence[str]]) -> str:
    """Returns the common names of a part's numbered agents, if these are all; else all names."""
    of_names = [name for name, agents in named.items() if set(agents) <= set(part)]
    whole = [agent for name in of_names for agent in named[name]]
    names = of_names if len(whole) == len(part) else list(part)
    return "+".join(names if len(names) <= 2 else [names[0], f"{len(names) - 1} more"])
