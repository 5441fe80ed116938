"""Who plays a role: its labels against each other, the other roles played by the same others.

Runs with the same others are one stratum, as a task is in a benchmark of many: runs are drawn
again inside it, and differences are taken inside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from muxrl.orchestrator.comparisons.findings.contestants import Contestant
from muxrl.orchestrator.comparisons.findings.scores import RunScore, luck_of
from muxrl.orchestrator.measure.rliable import (
    interquartile_mean_interval,
    performance_profile,
    probability_of_improvement,
)
from muxrl.orchestrator.measure.statistics import (
    Estimate,
    Floats,
    Line,
    mean_interval,
    variance_of,
)
from muxrl.orchestrator.measure.subjects import Subject

_NUM_THRESHOLDS = 60  # of a drawn profile


@dataclass(frozen=True)
class RoleStanding:
    """What one label reached in a role.

    Attributes:
        role: its name.
        label: what played it.
        num_runs: its runs among all common others.
        num_contexts: the sets of common others.
        score: interquartile mean over these runs.
        random_in_place: mean over the same runs with random actions in the role, None: unknown.
        profile: the part of its runs above each return.
    """

    role: str
    label: str
    num_runs: int
    num_contexts: int
    score: Estimate
    random_in_place: float | None
    profile: Line


@dataclass(frozen=True)
class Pairing:
    """One label against another in the same role, among the same others.

    Attributes:
        role: its name.
        first, second: the labels.
        improvement: probability that a run of the first scores higher.
        difference: mean of the first's score less the second's, paired by seed and by others;
            None without a common seed, and no interval where they
            share only one seed among some others.
        num_pairs: runs of the first that have a counterpart.
    """

    role: str
    first: str
    second: str
    improvement: Estimate
    difference: Estimate | None
    num_pairs: int


@dataclass(frozen=True)
class RoleResult:
    """The labels of one role, each among the same others.

    Attributes:
        subject: the role.
        contexts: who played the other roles, ``ppo prey`` each; only others that every label met.
        standings: by label.
        pairings: of every ordered pair of labels.
    """

    subject: Subject
    contexts: tuple[str, ...]
    standings: tuple[RoleStanding, ...]
    pairings: tuple[Pairing, ...]

    @property
    def unordered_pairings(self) -> tuple[Pairing, ...]:
        """Each two labels once, in the order of the standings."""
        labels = [standing.label for standing in self.standings]
        return tuple(p for p in self.pairings if labels.index(p.first) < labels.index(p.second))


def compare_roles(
    contestants: Sequence[Contestant], subjects: Sequence[Subject], scores: Sequence[RunScore]
) -> list[RoleResult]:
    """Compares labels role by role.

    Roles that only one label played, or whose labels have no others in common, are left out.
    """
    results = []
    for subject in subjects:
        if subject.kind == "role":
            tables = _by_label(contestants, subject, scores)
            common = [
                context
                for context in dict.fromkeys(c for table in tables.values() for c in table)
                if all(context in table for table in tables.values())
            ]
            if len(tables) > 1 and common:
                results.append(_role_result(subject, tables, common))
    return results


_Table = dict[str, dict[int, RunScore]]
"""Context to seed to score."""


def _by_label(
    contestants: Sequence[Contestant], subject: Subject, scores: Sequence[RunScore]
) -> dict[str, _Table]:
    """For each label of a role, its runs by who played the other roles."""
    tables: dict[str, _Table] = {}
    of_subject = {(s.contestant, s.seed): s for s in scores if s.subject == subject.key}
    for contestant in contestants:
        rows = {
            seed: score
            for seed in contestant.seeds
            if math.isfinite((score := of_subject[contestant.name, seed]).score)
        }
        if rows:
            table = tables.setdefault(contestant.played[subject.name], {})
            table[contestant.others(subject.name)] = rows
    return tables


def _role_result(
    subject: Subject, tables: Mapping[str, _Table], common: Sequence[str]
) -> RoleResult:
    strata = {
        label: [[score.score for score in table[context].values()] for context in common]
        for label, table in tables.items()
    }
    every = np.concatenate([np.concatenate(ours) for ours in strata.values()])
    margin = 0.02 * (every.max() - every.min()) or 1.0
    places = np.linspace(every.min() - margin, every.max() + margin, _NUM_THRESHOLDS)
    standings = []
    for label, ours in strata.items():
        luck = luck_of([s for context in common for s in tables[label][context].values()])
        in_place = [
            score.random_in_place
            for context in common
            for score in tables[label][context].values()
            if score.random_in_place is not None
        ]
        standings.append(
            RoleStanding(
                role=subject.name,
                label=label,
                num_runs=sum(map(len, ours)),
                num_contexts=len(common),
                score=interquartile_mean_interval(ours, luck),
                random_in_place=float(np.mean(in_place)) if in_place else None,
                profile=performance_profile(ours, places, variance_of(_arrays(ours)).share(luck)),
            )
        )
    pairings = []
    for first, second in permutations(tables, 2):
        pairs = [
            [
                (tables[first][context][seed], tables[second][context][seed])
                for seed in tables[first][context]
                if seed in tables[second][context]
            ]
            for context in common
        ]
        both = [pair for those in pairs for pair in those]
        luck = luck_of([one for one, _ in both], [other for _, other in both])
        differences = [[a.score - b.score for a, b in those] for those in pairs if those]
        variance = variance_of(_arrays(strata[first])) + variance_of(_arrays(strata[second]))
        pairings.append(
            Pairing(
                role=subject.name,
                first=first,
                second=second,
                improvement=probability_of_improvement(
                    strata[first], strata[second], variance.share(luck)
                ),
                difference=mean_interval(differences, luck) if differences else None,
                num_pairs=len(both),
            )
        )
    return RoleResult(subject, tuple(common), tuple(standings), tuple(pairings))


def _arrays(strata: Sequence[Sequence[float]]) -> list[Floats]:
    return [np.array(scores) for scores in strata]
