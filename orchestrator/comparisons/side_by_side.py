"""Different assignments of the same roles, each trained in runs of its own, on equal budgets.

The unit is the run: its score for some agents is the mean return over its evaluation's episodes.
So intervals speak of training on any seed. Runs are compared where all of them have been: at the
largest number of env steps at which every one was evaluated, give or take `TOLERANCE`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np

from muxrl.orchestrator.comparisons.contestants import Contestant
from muxrl.orchestrator.comparisons.curves import Curve
from muxrl.orchestrator.comparisons.roles import Subject
from muxrl.orchestrator.comparisons.sources import ComparedRun
from muxrl.orchestrator.errors import CannotCompare
from muxrl.orchestrator.records.recorded_run import EvaluationPoint, Floats
from muxrl.orchestrator.reports.statistics import (
    Estimate,
    Profile,
    interquartile_mean_interval,
    mean_interval,
    performance_profile,
    probability_of_improvement,
)

TOLERANCE = 0.05
"""Runs stop, and are evaluated, a few env steps apart; a twentieth of a budget is no advantage."""
HALFWAY = 0.5
"""Where a threshold lies by default, between random and the best; early enough to be reached."""
_NUM_THRESHOLDS = 60


@dataclass(frozen=True)
class Budget:
    """How much training is compared.

    Attributes:
        place: env steps near which every run that learns was evaluated; 0 if none learns. Each is
            scored at its last evaluation within `TOLERANCE` of it, see `point_at`.
        env_steps: the fewest that a run had at that evaluation.
        longest: that any run was trained for and evaluated after.
        is_cut: whether runs went on, and what came after is left out.
        num_episodes: of each run's evaluation there, the same for all.
    """

    place: int
    env_steps: int
    longest: int
    is_cut: bool
    num_episodes: int


@dataclass(frozen=True)
class RunScore:
    """What one run reached, for some agents.

    Attributes:
        contestant: its name.
        run: its directory.
        seed: of its training.
        subject: key of the agents measured.
        score: mean return over the evaluation's episodes.
        num_episodes: of these.
        env_steps: of training before.
        time_s: seconds of training before, NaN if unknown.
        area: mean height of the learning curve up to the budget, NaN if it was not drawn.
        env_steps_to_threshold: of the first evaluation that reached it, None: none did.
        time_s_to_threshold: likewise.
        random_in_place: score of the same agents acting at random among the same others, None:
            not measured.
        curve: of its evaluations.
    """

    contestant: str
    run: Path
    seed: int
    subject: str
    score: float
    num_episodes: int
    env_steps: int
    time_s: float
    area: float
    env_steps_to_threshold: int | None
    time_s_to_threshold: float | None
    random_in_place: float | None
    curve: Curve


@dataclass(frozen=True)
class Standing:
    """What one contestant reached, for some agents.

    Attributes:
        contestant: its name.
        subject: key of the agents.
        score: interquartile mean over its runs.
        mean: over its runs, with the interval that is widened for small samples.
        area: interquartile mean of the areas; None without curves.
        num_reached: runs that reached the threshold.
        env_steps_to_threshold: median over all its runs, None: less than half of them reached it.
        time_s_to_threshold: likewise.
        runs: its runs' scores, by seed.
    """

    contestant: str
    subject: str
    score: Estimate
    mean: Estimate
    area: Estimate | None
    num_reached: int
    env_steps_to_threshold: float | None
    time_s_to_threshold: float | None
    runs: tuple[RunScore, ...]


@dataclass(frozen=True)
class Pairing:
    """One label against another in the same role, among the same others.

    Attributes:
        first, second: labels.
        improvement: probability that a run of the first scores higher.
        difference: mean of the first's score less the second's, paired by seed and by others,
            widened for small samples; None without a common seed, and no interval where among
            some others there is but one.
        num_pairs: of seeds.
    """

    first: str
    second: str
    improvement: Estimate
    difference: Estimate | None
    num_pairs: int


@dataclass(frozen=True)
class RoleStanding:
    """What one label reached in a role.

    Attributes:
        label: who played it.
        score: interquartile mean over its runs among all common others.
        random_in_place: mean over the same runs with random actions in the role, None: unknown.
        profile: the part of its runs above each return.
        num_runs: of them.
    """

    label: str
    score: Estimate
    random_in_place: float | None
    profile: Profile
    num_runs: int


@dataclass(frozen=True)
class RoleResult:
    """The labels of one role, each among the same others.

    Attributes:
        subject: the role.
        contexts: who played the other roles, ``ppo prey`` each; only those that every label
            met. Runs are drawn again inside their own context.
        standings: by label.
        pairings: of every ordered pair of labels.
    """

    subject: Subject
    contexts: tuple[str, ...]
    standings: tuple[RoleStanding, ...]
    pairings: tuple[Pairing, ...]


def find_budget(runs: Sequence[ComparedRun], wanted: int | None = None) -> Budget:
    """Returns the most env steps after which all runs that learn were evaluated.

    Raises:
        CannotCompare: there are none, or none near `wanted`.
    """
    learning = [run for run in runs if _learns(run)]
    if not learning:
        return Budget(0, 0, 0, False, min(_num_episodes(run.points[-1]) for run in runs))
    last = {run: run.points[-1].env_steps for run in learning}
    longest, shortest = max(last.values()), min(last.values())
    if wanted is not None and shortest < wanted * (1 - TOLERANCE):
        run = min(last, key=lambda r: last[r])
        raise CannotCompare(
            f"the budget of {wanted:,} env steps is more than run {run.name!r} has: it was last "
            f"evaluated after {last[run]:,}"
        )
    places = (
        [wanted]
        if wanted is not None
        else sorted({point.env_steps for run in learning for point in run.points}, reverse=True)
    )
    for place in places:
        points = [p for run in learning if (p := _point_near(run, place)) is not None]
        if len(points) == len(learning) and (place > 0 or longest == 0):
            fixed = [run.points[-1] for run in runs if not _learns(run)]
            return Budget(
                place=place,
                env_steps=min(point.env_steps for point in points),
                longest=longest,
                is_cut=longest > place * (1 + TOLERANCE),
                num_episodes=min(map(_num_episodes, [*points, *fixed])),
            )
    if wanted is not None:
        raise CannotCompare(f"not every run was evaluated after about {wanted:,} env steps")
    ends = [next(r for r in learning if last[r] == end) for end in (shortest, longest)]
    raise CannotCompare(
        f"runs have different budgets and no common point to cut them to: {ends[0].name!r} was "
        f"last evaluated after {shortest:,} env steps, {ends[1].name!r} after {longest:,}; train "
        "them for equally many, or set evaluation.interval_env_steps so that they can be cut"
    )


def point_at(run: ComparedRun, budget: Budget) -> EvaluationPoint:
    """Returns the evaluation that a run is scored at: the last one, if nothing in it learns.

    Raises:
        ValueError: the run has none there, so it is not one of those that the budget is of.
    """
    point = _point_near(run, budget.place) if _learns(run) else run.points[-1]
    if point is None:
        raise ValueError(f"run {run.name!r} was not evaluated near {budget.place:,} env steps")
    return point


def score_runs(
    contestants: Sequence[Contestant],
    subjects: Sequence[Subject],
    budget: Budget,
    thresholds: Mapping[str, float],
) -> list[RunScore]:
    """Returns the score of every run for every subject.

    Args:
        contestants: whose runs.
        subjects: agents measured.
        budget: at which.
        thresholds: by subject's key, those that have one.
    """
    learning = [c for c in contestants if c.learns]
    start = max((run.points[0].env_steps for c in learning for run in c.runs), default=0)
    return [
        _score(contestant, run, subject, budget, start, thresholds.get(subject.key))
        for contestant in contestants
        for run in contestant.runs
        for subject in subjects
    ]


def standings_of(scores: Iterable[RunScore]) -> list[Standing]:
    """Gathers runs into contestants."""
    groups: dict[tuple[str, str], list[RunScore]] = {}
    for score in scores:
        groups.setdefault((score.contestant, score.subject), []).append(score)
    return [_standing(runs) for runs in groups.values()]


def role_results(
    contestants: Sequence[Contestant], subjects: Sequence[Subject], scores: Sequence[RunScore]
) -> list[RoleResult]:
    """Compares labels role by role; a role that only one label played has nothing to compare."""
    results = []
    for subject in subjects:
        if subject.kind == "role":
            tables = _by_label(contestants, subject, scores)
            if len(tables) > 1:
                result = _role_result(subject, tables)
                if result is not None:
                    results.append(result)
    return results


def default_thresholds(
    subjects: Sequence[Subject], random: Mapping[str, float], best: Mapping[str, float]
) -> dict[str, float]:
    """Returns for each subject the return halfway from random to the best contestant's.

    Args:
        subjects: agents measured.
        random: by subject's key, the mean return of random agents.
        best: the best contestant's interquartile mean.
    """
    return {
        s.key: random[s.key] + HALFWAY * (best[s.key] - random[s.key])
        for s in subjects
        if s.key in random and best.get(s.key, -math.inf) > random[s.key]
    }


def _learns(run: ComparedRun) -> bool:
    return any(server.learns for server in run.recorded.servers.values())


def _num_episodes(point: EvaluationPoint) -> int:
    return max(len(returns) for returns in point.returns[None].values())


def _point_near(run: ComparedRun, place: int) -> EvaluationPoint | None:
    """The evaluation after about so many env steps, the one with most of them."""
    near = [p for p in run.points if abs(p.env_steps - place) <= TOLERANCE * place]
    return near[-1] if near else None


def _score(
    contestant: Contestant,
    run: ComparedRun,
    subject: Subject,
    budget: Budget,
    start: int,
    threshold: float | None,
) -> RunScore:
    point = point_at(run, budget)
    learned = _returns(point, subject, None, budget.num_episodes)
    in_place = None
    server_id = run.server_of[subject.agents[0]]
    if set(run.recorded.servers[server_id].agents) == set(subject.agents):
        random = _returns(point, subject, server_id, budget.num_episodes)
        in_place = _mean(random) if len(random) else None
    curve = _curve(run, subject, point.env_steps)
    first = None if threshold is None or not contestant.learns else curve.first_at(threshold)
    return RunScore(
        contestant=contestant.name,
        run=run.path,
        seed=run.seed,
        subject=subject.key,
        score=_mean(learned),
        num_episodes=len(learned),
        env_steps=point.env_steps if contestant.learns else 0,
        time_s=point.time_s if contestant.learns else math.nan,
        area=curve.area(start, budget.env_steps) if contestant.learns else math.nan,
        env_steps_to_threshold=None if first is None else int(curve.env_steps[first]),
        time_s_to_threshold=None if first is None else float(curve.time_s[first]),
        random_in_place=in_place,
        curve=curve,
    )


def _returns(
    point: EvaluationPoint, subject: Subject, replaced: str | None, num_episodes: int
) -> Floats:
    """One return for each of the first episodes, those without the agents left out."""
    returns = subject.returns(point.returns.get(replaced, {}))[:num_episodes]
    return returns[np.isfinite(returns)]


def _mean(returns: Floats) -> float:
    return float(returns.mean()) if len(returns) else math.nan


def _curve(run: ComparedRun, subject: Subject, until: int) -> Curve:
    points = [p for p in run.points if p.env_steps <= until]
    returns = [_mean(_returns(p, subject, None, _num_episodes(p))) for p in points]
    kept = [i for i, value in enumerate(returns) if math.isfinite(value)]
    return Curve(
        env_steps=np.array([points[i].env_steps for i in kept], dtype=np.float64),
        time_s=np.array([points[i].time_s for i in kept], dtype=np.float64),
        returns=np.array([returns[i] for i in kept]),
    )


def _standing(runs: Sequence[RunScore]) -> Standing:
    scores = [run.score for run in runs if math.isfinite(run.score)]
    areas = [run.area for run in runs]
    reached = [run for run in runs if run.env_steps_to_threshold is not None]
    return Standing(
        contestant=runs[0].contestant,
        subject=runs[0].subject,
        score=interquartile_mean_interval([scores]) if scores else _NOTHING,
        mean=mean_interval([scores]) if scores else _NOTHING,
        area=interquartile_mean_interval([areas]) if all(map(math.isfinite, areas)) else None,
        num_reached=len(reached),
        env_steps_to_threshold=_median([run.env_steps_to_threshold for run in runs]),
        time_s_to_threshold=_median([run.time_s_to_threshold for run in runs]),
        runs=tuple(runs),
    )


_NOTHING = Estimate(math.nan, math.nan, math.nan)


def _median(values: Sequence[float | None]) -> float | None:
    """The median, where those that never got there come last; None if that is one of them."""
    median = float(np.median([math.inf if v is None else v for v in values]))
    return median if math.isfinite(median) else None


_Table = dict[str, dict[int, RunScore]]
"""Context to seed to score."""


def _by_label(
    contestants: Sequence[Contestant], subject: Subject, scores: Sequence[RunScore]
) -> dict[str, _Table]:
    """For each label of a role, its runs by who played the other roles."""
    tables: dict[str, _Table] = {}
    of_subject = {(s.contestant, s.seed): s for s in scores if s.subject == subject.key}
    for contestant in contestants:
        label = contestant.played[subject.name]
        rows = {
            seed: score
            for seed in contestant.seeds
            if math.isfinite((score := of_subject[contestant.name, seed]).score)
        }
        if rows:
            tables.setdefault(label, {})[contestant.others(subject.name)] = rows
    return tables


def _role_result(subject: Subject, tables: Mapping[str, _Table]) -> RoleResult | None:
    common = [
        context
        for context in dict.fromkeys(c for table in tables.values() for c in table)
        if all(context in table for table in tables.values())
    ]
    if not common:
        return None
    strata = {
        label: [[score.score for score in table[context].values()] for context in common]
        for label, table in tables.items()
    }
    every = np.concatenate([np.concatenate(ours) for ours in strata.values()])
    margin = 0.02 * (every.max() - every.min()) or 1.0
    places = np.linspace(every.min() - margin, every.max() + margin, _NUM_THRESHOLDS)
    standings = []
    for label, ours in strata.items():
        in_place = [
            score.random_in_place
            for context in common
            for score in tables[label][context].values()
            if score.random_in_place is not None
        ]
        standings.append(
            RoleStanding(
                label=label,
                score=interquartile_mean_interval(ours),
                random_in_place=float(np.mean(in_place)) if in_place else None,
                profile=performance_profile(ours, places),
                num_runs=sum(map(len, ours)),
            )
        )
    pairings = []
    for first, second in permutations(tables, 2):
        differences = [
            [
                tables[first][context][seed].score - tables[second][context][seed].score
                for seed in tables[first][context]
                if seed in tables[second][context]
            ]
            for context in common
        ]
        paired = [each for each in differences if each]
        pairings.append(
            Pairing(
                first=first,
                second=second,
                improvement=probability_of_improvement(strata[first], strata[second]),
                difference=mean_interval(paired) if paired else None,
                num_pairs=sum(map(len, paired)),
            )
        )
    return RoleResult(subject, tuple(common), tuple(standings), tuple(pairings))
