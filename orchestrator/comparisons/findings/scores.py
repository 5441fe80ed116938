"""What each run and each contestant reached: scores, learning speed and their intervals.

The unit is the run: its score for some agents is their mean return over the episodes of its
evaluation at the budget. So intervals speak of training with any seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from muxrl.orchestrator.comparisons.findings.budget import Budget, num_episodes_of, point_at
from muxrl.orchestrator.comparisons.findings.compared_runs import ComparedRun
from muxrl.orchestrator.comparisons.findings.contestants import Contestant
from muxrl.orchestrator.comparisons.findings.curves import Curve
from muxrl.orchestrator.comparisons.findings.roles import Subject
from muxrl.orchestrator.records.agent_returns import Floats
from muxrl.orchestrator.records.recorded_run import EvaluationPoint
from muxrl.orchestrator.reports.rliable import interquartile_mean, interquartile_mean_interval
from muxrl.orchestrator.reports.statistics import UNKNOWN, Estimate, mean_interval

HALFWAY = 0.5
"""Where a threshold lies by default, between random and the best; early enough to be reached."""


@dataclass(frozen=True)
class RunScore:
    """What one run reached, for some agents.

    Attributes:
        contestant: name of the contestant that the run belongs to.
        assignment: the run's, as one string.
        run: the run's directory.
        seed: of its training.
        subject: key of the agents measured.
        score: mean return over the evaluation's episodes.
        num_episodes: of that evaluation.
        env_steps: of training before it.
        time_s: seconds of training before it, NaN if unknown.
        area: mean height of the learning curve up to the budget, NaN if there is no such curve.
        env_steps_to_threshold: of the first evaluation that reached the threshold, None: none did.
        time_s_to_threshold: likewise in seconds.
        random_in_place: score of the same agents acting at random among the same others, None:
            not measured.
        curve: of its evaluations up to the budget.
    """

    contestant: str
    assignment: str
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
        mean: over its runs, with an interval widened for small samples.
        area: interquartile mean of the runs' areas; None without curves.
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


def score_runs(
    contestants: Sequence[Contestant],
    subjects: Sequence[Subject],
    budget: Budget,
    thresholds: Mapping[str, float],
) -> list[RunScore]:
    """Returns the score of every run for every subject.

    Args:
        contestants: whose runs are scored.
        subjects: agents measured.
        budget: at which they are scored.
        thresholds: by subject's key; subjects without one are never said to reach it.
    """
    learning = [c for c in contestants if c.learns]
    start = max((run.points[0].env_steps for c in learning for run in c.runs), default=0)
    return [
        _score(contestant, run, subject, budget, start, thresholds.get(subject.key))
        for contestant in contestants
        for run in contestant.runs
        for subject in subjects
    ]


def standings_of(scores: Sequence[RunScore]) -> list[Standing]:
    """Gathers runs into contestants."""
    groups: dict[tuple[str, str], list[RunScore]] = {}
    for score in scores:
        groups.setdefault((score.contestant, score.subject), []).append(score)
    return [_standing(runs) for runs in groups.values()]


def default_thresholds(
    contestants: Sequence[Contestant],
    subjects: Sequence[Subject],
    budget: Budget,
    random: Mapping[str, float],
) -> dict[str, float]:
    """Returns, by subject's key, the return halfway from random to the best contestant's.

    A subject in which no contestant is above random has none.

    Args:
        contestants: each counts with the interquartile mean of its runs.
        subjects: agents measured.
        budget: at which runs are scored.
        random: by subject's key, the mean return of random agents.
    """
    thresholds = {}
    for subject in subjects:
        best = -math.inf
        for contestant in contestants:
            scores = [_mean(_final_returns(run, subject, budget)) for run in contestant.runs]
            known = [score for score in scores if math.isfinite(score)]
            if known:
                best = max(best, interquartile_mean(known))
        low = random.get(subject.key, math.inf)
        if best > low:
            thresholds[subject.key] = low + HALFWAY * (best - low)
    return thresholds


def _score(
    contestant: Contestant,
    run: ComparedRun,
    subject: Subject,
    budget: Budget,
    start: int,
    threshold: float | None,
) -> RunScore:
    point = point_at(run, budget)
    learned = _final_returns(run, subject, budget)
    in_place = None
    server_id = run.server_of[subject.agents[0]]
    if set(run.recorded.servers[server_id].agents) == set(subject.agents):
        random = _returns(point, subject, server_id, budget.num_episodes)
        in_place = _mean(random) if len(random) else None
    curve = _curve(run, subject, point.env_steps)
    first = None if threshold is None or not contestant.learns else curve.first_at(threshold)
    return RunScore(
        contestant=contestant.name,
        assignment=run.recorded.assignment,
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


def _final_returns(run: ComparedRun, subject: Subject, budget: Budget) -> Floats:
    """The returns that a run's score is the mean of: ``[num_episodes]``."""
    return _returns(point_at(run, budget), subject, None, budget.num_episodes)


def _returns(
    point: EvaluationPoint, subject: Subject, replaced: str | None, num_episodes: int
) -> Floats:
    """One return for each of the first episodes; those without any of the agents are left out."""
    returns = subject.returns(point.returns.get(replaced, {}))[:num_episodes]
    return returns[np.isfinite(returns)]


def _mean(returns: Floats) -> float:
    return float(returns.mean()) if len(returns) else math.nan


def _curve(run: ComparedRun, subject: Subject, until: int) -> Curve:
    points = [p for p in run.points if p.env_steps <= until]
    returns = [_mean(_returns(p, subject, None, num_episodes_of(p))) for p in points]
    kept = [i for i, value in enumerate(returns) if math.isfinite(value)]
    return Curve(
        env_steps=np.array([points[i].env_steps for i in kept], dtype=np.float64),
        time_s=np.array([points[i].time_s for i in kept], dtype=np.float64),
        returns=np.array([returns[i] for i in kept]),
    )


def _standing(runs: Sequence[RunScore]) -> Standing:
    scores = [run.score for run in runs if math.isfinite(run.score)]
    areas = [run.area for run in runs]
    return Standing(
        contestant=runs[0].contestant,
        subject=runs[0].subject,
        score=interquartile_mean_interval([scores]) if scores else UNKNOWN,
        mean=mean_interval([scores]) if scores else UNKNOWN,
        area=interquartile_mean_interval([areas]) if all(map(math.isfinite, areas)) else None,
        num_reached=sum(run.env_steps_to_threshold is not None for run in runs),
        env_steps_to_threshold=_median([run.env_steps_to_threshold for run in runs]),
        time_s_to_threshold=_median([run.time_s_to_threshold for run in runs]),
        runs=tuple(runs),
    )


def _median(values: Sequence[float | None]) -> float | None:
    """The median, None counting as infinitely late; None if that is the median."""
    median = float(np.median([math.inf if v is None else v for v in values]))
    return median if math.isfinite(median) else None
