"""Results of evaluation episodes: returns of servers, agents, teams and roles, with intervals."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from muxrl.orchestrator.records.agent_returns import AgentReturns
from muxrl.orchestrator.reports.rliable import interquartile_mean
from muxrl.orchestrator.reports.statistics import Estimate, mean_interval

_NUMBERED = re.compile(r"(.*?[A-Za-z])[_-]?\d+")


@dataclass(frozen=True)
class Returns:
    """Returns of some agents over the episodes.

    Attributes:
        agents: whose; one that took no part in an episode does not count there.
        mean: of an episode's mean over the agents, with its 95 % bootstrap interval.
        deviation: standard deviation over the episodes, unbiased; NaN of one episode.
        interquartile_mean: over the episodes.
        total: as `mean`, of the sum over the agents.
    """

    agents: tuple[str, ...]
    mean: Estimate
    deviation: float
    interquartile_mean: float
    total: Estimate


@dataclass(frozen=True)
class EvaluatedServer:
    """How one server played.

    Attributes:
        algorithm: that trained its policies, or the fixed one that played.
        rule: "greedy" or "sampled" for trained policies, "fixed" for others.
        checkpoint: folder of the policies, "" where there is none.
        returns: of its agents.
    """

    algorithm: str
    rule: str
    checkpoint: str
    returns: Returns


@dataclass(frozen=True)
class EvaluationResult:
    """The results of all episodes.

    Attributes:
        run: name of the run.
        assignment: which algorithm served which agents, replacements included.
        seeds: one for each episode, with which the simulation was reset.
        num_steps: env steps of each episode.
        episode_returns: each agent's, of raw rewards.
        servers: by server id.
        agents: by agent.
        groups: teams of more than one agent, by "server/group".
        roles: by role, where agents are numbered: "prey" for "prey_0" and "prey_1".
        everybody: all agents together.
        replaced: server to what played its agents instead.
        path: of the file that was written, None if none was.
    """

    run: str
    assignment: str
    seeds: tuple[int, ...]
    num_steps: tuple[int, ...]
    episode_returns: AgentReturns
    servers: Mapping[str, EvaluatedServer]
    agents: Mapping[str, Returns]
    groups: Mapping[str, Returns]
    roles: Mapping[str, Returns]
    everybody: Returns
    replaced: Mapping[str, str]
    path: Path | None = None

    def to_dict(self) -> dict[str, Any]:
        """The same for JSON, without `path`."""
        fields = asdict(self)
        del fields["path"]
        return fields


def returns_of(episode_returns: AgentReturns, agents: Sequence[str]) -> Returns:
    """Returns the statistics of these agents.

    Raises:
        ValueError: none of them was in any episode.
    """
    rows = [[math.nan if r is None else r for r in episode_returns[agent]] for agent in agents]
    table = np.array(rows, dtype=np.float64)
    table = table[:, np.isfinite(table).any(axis=0)]
    if not table.size:
        raise ValueError(f"no episode had any of the agents {', '.join(agents)}")
    means = np.nanmean(table, axis=0)
    return Returns(
        agents=tuple(agents),
        mean=mean_interval([means]),
        deviation=float(means.std(ddof=1)) if len(means) > 1 else math.nan,
        interquartile_mean=interquartile_mean(means),
        total=mean_interval([np.nansum(table, axis=0)]),
    )


def roles_of(agents: Sequence[str]) -> dict[str, list[str]]:
    """Returns agents by role: the name before a number; {} if there is one role, or one each.

    Only the simulation knows the roles, so they are read from the agents' names.
    """
    roles: dict[str, list[str]] = {}
    for agent in agents:
        roles.setdefault(unnumbered(agent), []).append(agent)
    return roles if 1 < len(roles) < len(agents) else {}


def unnumbered(agent: str) -> str:
    """Returns an agent's name as it is before its number: "prey" for "prey_0"."""
    numbered = _NUMBERED.fullmatch(agent)
    return numbered.group(1) if numbered else agent
