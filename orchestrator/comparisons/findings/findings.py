"""All that a comparison found, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from muxrl.orchestrator.comparisons.findings.budget import Budget
from muxrl.orchestrator.comparisons.findings.contestants import Contestant
from muxrl.orchestrator.comparisons.findings.head_to_head import HeadToHead
from muxrl.orchestrator.comparisons.findings.role_by_role import RoleResult
from muxrl.orchestrator.comparisons.findings.roles import Subject
from muxrl.orchestrator.comparisons.findings.scores import Standing
from muxrl.orchestrator.reports.statistics import Estimate


@dataclass(frozen=True)
class Baseline:
    """Fixed policies alone, in all roles: what returns are without learning.

    Attributes:
        name: "random", or who plays what: ``flee prey | random predator``.
        returns: by subject's key, the mean over episodes, with its interval over episodes.
        num_episodes: that were played.
    """

    name: str
    returns: Mapping[str, Estimate]
    num_episodes: int


@dataclass(frozen=True)
class Findings:
    """What came of comparing runs of one simulation.

    Attributes:
        env: the simulation, as its config names it.
        kwargs: its arguments.
        contestants: what was compared, each with its runs.
        roles: role to its agents.
        subjects: whose returns were measured.
        budget: at how much training.
        should_explore: whether stochastic policies were sampled in the runs' evaluations.
        first_seed: of the evaluations' episodes, which are the same for all runs.
        baselines: fixed policies on the same episodes, random ones first; () if none could be
            played.
        thresholds: by subject's key, the return whose first reaching counts.
        given_thresholds: keys of those that the user chose.
        standings: of every contestant, for every subject.
        roles_compared: role by role, label against label among the same others.
        head_to_head: None if it was not asked for.
        notes: what a reader must know before trusting the numbers.
    """

    env: str
    kwargs: Mapping[str, Any]
    contestants: tuple[Contestant, ...]
    roles: Mapping[str, tuple[str, ...]]
    subjects: tuple[Subject, ...]
    budget: Budget
    should_explore: bool
    first_seed: int
    baselines: tuple[Baseline, ...]
    thresholds: Mapping[str, float]
    given_thresholds: frozenset[str]
    standings: tuple[Standing, ...]
    roles_compared: tuple[RoleResult, ...]
    head_to_head: HeadToHead | None
    notes: tuple[str, ...]

    @property
    def main_subjects(self) -> tuple[Subject, ...]:
        """The roles, and all agents together: what the first tables show."""
        return tuple(s for s in self.subjects if s.kind in ("role", "total"))

    def standing(self, contestant: str, subject: str) -> Standing:
        """Returns what a contestant reached.

        Args:
            contestant: its name.
            subject: key of the agents, such as ``role:prey`` or ``total``.

        Raises:
            KeyError: there is no such contestant or subject.
        """
        for standing in self.standings:
            if (standing.contestant, standing.subject) == (contestant, subject):
                return standing
        raise KeyError((contestant, subject))
