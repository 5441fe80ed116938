"""Returns of single agents, put together: of a server, a team, a role, or all agents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
AgentReturns = Mapping[str, Sequence[float | None]]
"""For each agent, one return for each episode; None where it was not in it."""


def returns_by_episode(
    by_agent: AgentReturns, agents: Sequence[str], *, is_sum: bool = False
) -> Floats:
    """Returns for each episode the mean return over some agents, or their sum.

    An agent that was not in an episode does not count there. An episode with none of the agents is
    NaN and keeps its place, so that evaluations on the same episodes can be paired.

    Args:
        by_agent: may lack some of the agents, and hold fewer episodes for some than for others.
        agents: whose returns.
        is_sum: whether to add them up instead of averaging.

    Returns:
        ``[num_episodes]``; empty if `by_agent` has none of the agents.
    """
    rows = [by_agent[agent] for agent in agents if agent in by_agent]
    if not rows:
        return np.empty(0)
    table = np.full((len(rows), max(map(len, rows))), math.nan)
    for row, values in zip(table, rows, strict=True):
        row[: len(values)] = [math.nan if value is None else value for value in values]
    counts = np.isfinite(table).sum(axis=0)
    totals = np.where(counts > 0, np.nansum(table, axis=0), math.nan)
    return totals if is_sum else totals / np.maximum(counts, 1)
