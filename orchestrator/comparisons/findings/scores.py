"""What each run and each contestant reached: scores, learning curves and their intervals.

The unit is the run: its score for some agents is their mean return over the episodes of its
evaluation at the budget. So intervals speak of training with any seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from muxrl.orchestrator.comparisons.findings.compared_runs import (
    Budget,
    point_at,
)
from muxrl.orchestrator.comparisons.findings.contestants import Contestant
from muxrl.orchestrator.measure.against_random import share_episodes
from muxrl.orchestrator.measure.rliable import interquartile_mean, interquartile_mean_interval
from muxrl.orchestrator.measure.statistics import (
    NO_LUCK,
    UNKNOWN,
    Estimate,
    Line,
    Unit,
    Variance,
    are_proportions,
    estimate_of,
    mean_interval,
    shared_luck,
)
from muxrl.orchestrator.measure.subjects import Measured, Subject, measured
from muxrl.orchestrator.records.evaluations import AS_LEARNED
from muxrl.orchestrator.records.recorded_run import RecordedRun
from muxrl.orchestrator.records.series import Floats

Axis = Literal["env_steps", "time_s"]
Measure = Literal["return", "advantage"]
"""What tells how fast a subject learned. The advantage is its return less that of random agents in
its place among the same others, who learn, too: untrained opponents are nobody's merit."""
_NUM_PLACES = 60  # of a drawn curve; few enough for a small file, more than there are evaluations
_NUM_RESAMPLES = 1_000  # a band's edge drawn a pixel off is no loss

HALFWAY = 0.5
"""Where a threshold lies by default, between random and the best; early enough to be reached."""


@dataclass(frozen=True)
class Curve:
    """One run's evaluations, by env steps; all arrays are ``[num_evaluations]``.

    Attributes:
        env_steps: of training before each, strictly rising.
        time_s: seconds of training before each, NaN where they were not recorded.
        returns: the mean over its episodes.
    """

    env_steps: Floats
    time_s: Floats
    returns: Floats

    def area(self, start: float, stop: float) -> float:
        """The area under the curve from `start` to `stop`, divided by their distance.

        So it is a mean height, in the unit of a return; by trapezoids between evaluations. NaN if
        the curve does not reach from `start` to `stop`, or has one evaluation.
        """
        if len(self.returns) < 2 or not self.env_steps[0] <= start < stop <= self.env_steps[-1]:
            return math.nan
        inside = self.env_steps[(self.env_steps > start) & (self.env_steps < stop)]
        places = np.concatenate([[start], inside, [stop]])
        heights = np.interp(places, self.env_steps, self.returns)
        return float(np.trapezoid(heights, places) / (stop - start))

    def first_at(self, threshold: float) -> int | None:
        """The index of the first evaluation whose return is at least `threshold`, None: none is.

        Nothing is interpolated, since nothing was measured between two evaluations.
        """
        reached = np.flatnonzero(self.returns >= threshold)
        return int(reached[0]) if len(reached) else None


def band(runs: Sequence[RunScore], axis: Axis) -> Line:
    """The interquartile mean over runs, over the part of the axis that all their curves cover.

    Args:
        runs: that differ in nothing but the seed.
        axis: the horizontal one.

    Returns:
        () where there is nothing to draw: a run with one evaluation, or without known times.
    """
    curves = [run.curve for run in runs]
    if not curves or any(len(curve.returns) < 2 for curve in curves):
        return ()
    ends = [(getattr(curve, axis)[0], getattr(curve, axis)[-1]) for curve in curves]
    start, stop = max(first for first, _ in ends), min(last for _, last in ends)
    if not stop > start:  # NaN, too
        return ()
    # At one run's own evaluations; over time, runs' evaluations differ, so a grid is added.
    sparsest = min(curves, key=lambda curve: len(curve.returns))
    own = getattr(sparsest, axis)
    own = own[(own > start) & (own < stop)]
    places = np.unique(np.concatenate([[start, stop], own]))
    if axis == "time_s":
        places = np.unique(np.concatenate([places, np.linspace(start, stop, _NUM_PLACES)]))
    table = np.array([np.interp(places, getattr(one, axis), one.returns) for one in curves])
    luck = luck_of(runs)  # that of the last evaluation stands for all
    return [
        (place, interquartile_mean_interval([column], luck, num_resamples=_NUM_RESAMPLES))
        for place, column in zip(places, table.T, strict=True)
    ]


@dataclass(frozen=True)
class RunScore:
    """What one run reached, for some agents.

    Attributes:
        contestant: name of the contestant that the run belongs to.
        assignment: the run's, as one string.
        run: the run's directory.
        seed: of its training.
        subject: key of the agents measured.
        played: in each of the evaluation's episodes: what these agents returned, and what with
            them at random or untrained among the same others, as far as that was measured. Only
            the last evaluation of a run measures untrained ones.
        env_steps: of training before it.
        time_s: seconds of training before it, NaN if unknown.
        area: mean height of the learning curve up to the budget, by the subject's `Measure`; NaN
            if there is no such curve, or nobody learned to play these agents.
        area_in_episodes: of the curve of each episode that all of its evaluations played.
        env_steps_to_threshold: of the first evaluation that reached the threshold, None: none did.
        time_s_to_threshold: likewise in seconds.
        met_untrained: whether its policies met the threshold before training, by which nothing
            is reached.
        curve: of its evaluations up to the budget.
    """

    contestant: str
    assignment: str
    run: Path
    seed: int
    subject: str
    played: Measured = field(repr=False, compare=False)
    env_steps: int
    time_s: float
    area: float
    area_in_episodes: Floats = field(repr=False, compare=False)
    env_steps_to_threshold: int | None
    time_s_to_threshold: float | None
    met_untrained: bool
    curve: Curve

    @property
    def score(self) -> float:
        """Mean return over the evaluation's episodes; NaN if the agents were in none."""
        return self.played.mean()

    @property
    def num_episodes(self) -> int:
        """Of that evaluation, that the agents were in."""
        return int(np.isfinite(self.played.learned).sum())

    @property
    def random_in_place(self) -> float | None:
        """The same with these agents at random; None: not measured."""
        return None if self.played.random is None else self.played.mean(self.played.in_place)


def luck_of(runs: Sequence[RunScore], others: Sequence[RunScore] = ()) -> Variance:
    """The variance of the mean score that comes of episodes that several runs played.

    Args:
        runs: whose score.
        others: less that of these, one for each run.
    """
    played, theirs = [run.played for run in runs], [run.played for run in others]
    first_seeds = [[one.first_seed for one in those] for those in (played, theirs)]
    if not any(map(share_episodes, first_seeds)):
        return NO_LUCK
    pairs = list(zip(played, theirs, strict=False))
    if not pairs:
        return shared_luck([one.learned for one in played])
    if any(one.first_seed != other.first_seed for one, other in pairs):
        return luck_of(runs) + luck_of(others)
    num = min(len(one.learned) for one in (*played, *theirs))
    return shared_luck([one.learned[:num] - other.learned[:num] for one, other in pairs])


@dataclass(frozen=True)
class Standing:
    """What one contestant reached, for some agents.

    Attributes:
        contestant: its name.
        subject: key of the agents.
        score: interquartile mean over its runs; of a metric that is 0 or 1 in every episode `mean`.
        mean: over its runs; of such a metric with Wilson's interval.
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


@dataclass(frozen=True)
class Scores:
    """What all runs reached.

    Attributes:
        runs: the score of every run for every subject.
        measures: by subject's key, of what its area and threshold are. It is the advantage over
            random in its place wherever all evaluations have that, of all runs that learn for it.
        thresholds: by subject's key; by default halfway from random to the best contestant.
            Subjects in which no contestant is above random have none.
        proportions: keys of metrics that are 0 or 1 in every episode.
    """

    runs: list[RunScore]
    measures: dict[str, Measure]
    thresholds: dict[str, float]
    proportions: frozenset[str]

    @property
    def standings(self) -> tuple[Standing, ...]:
        """The same of every contestant."""
        groups: dict[tuple[str, str], list[RunScore]] = {}
        for score in self.runs:
            groups.setdefault((score.contestant, score.subject), []).append(score)
        return tuple(
            _standing(runs, is_proportion=key in self.proportions)
            for (_, key), runs in groups.items()
        )


def score_runs(
    contestants: Sequence[Contestant],
    subjects: Sequence[Subject],
    budget: Budget,
    given: Mapping[str, float],
    random: Mapping[str, float],
) -> Scores:
    """Returns the scores.

    Args:
        contestants: whose runs are scored.
        subjects: agents measured.
        budget: at which they are scored.
        given: by subject's key, thresholds that the user gave: they are returns.
        random: by subject's key, the mean return of random agents.
    """
    measures: dict[str, Measure] = {}
    thresholds: dict[str, float] = {}
    played: dict[tuple[RecordedRun, str], _Played] = {}
    for subject in subjects:
        key = subject.key
        of_runs = {run: _Played(run, subject, budget) for c in contestants for run in c.runs}
        has_advantage = key not in given and _have_advantages(of_runs.values())
        measures[key] = "advantage" if has_advantage else "return"
        low = 0.0 if has_advantage else random.get(key, math.inf)
        finals = ([of_runs[run].final(measures[key]) for run in c.runs] for c in contestants)
        known = [list(filter(math.isfinite, values)) for values in finals]
        best = max((interquartile_mean(values) for values in known if values), default=-math.inf)
        if best > low:
            thresholds[key] = low + HALFWAY * (best - low)
        played |= {(run, key): one for run, one in of_runs.items()}
    thresholds |= given
    learning = [c for c in contestants if c.learns]
    start = max((run.points[0].env_steps for c in learning for run in c.runs), default=0)
    scores = [
        played[run, key].score(contestant, start, thresholds.get(key), measure)
        for contestant in contestants
        for run in contestant.runs
        for key, measure in measures.items()
    ]
    asked = {name for c in contestants for run in c.runs for name in run.metrics}
    metrics = {subject.key for subject in subjects if subject.metric in asked}
    by_metric = {m: [s.played.learned for s in scores if s.subject == m] for m in metrics}
    proportions = frozenset(m for m, values in by_metric.items() if are_proportions(values))
    return Scores(scores, measures, thresholds, proportions)


def _have_advantages(played: Iterable[_Played]) -> bool:
    curves = [(one.curve(), one.curve("advantage")) for one in played if one.learns]
    return bool(curves) and all(
        len(returns.returns) == len(advantage.returns) > 0 for returns, advantage in curves
    )


class _Played:
    """What some agents of one run returned up to the budget.

    Of the evaluation at the budget as many episodes count as all runs have, of earlier ones all
    that were played with all agents as learned.
    """

    def __init__(self, run: RecordedRun, subject: Subject, budget: Budget) -> None:
        self._run, self._subject, self._budget = run, subject, budget
        self._point = point_at(run, budget)
        servers = run.servers
        # Of a metric of the episode, nobody in particular.
        playing = {run.server_of[a] for a in subject.agents if a in run.server_of}
        self.learns = any(servers[server_id].learns for server_id in playing or servers)
        """Whether a server that plays any of the agents learns."""
        own = [s for s in playing if set(servers[s].agents) == set(subject.agents)]
        in_place = own[0] if own else ""  # the server that plays these agents and no others
        until = [point for point in run.points if point.env_steps <= self._point.env_steps]
        self._measured = [
            one.cut(len(one.learned)) for one in measured(run.evaluations, until, subject, in_place)
        ]
        self._time_s = {point.env_steps: point.time_s for point in until}

    def score(
        self, contestant: Contestant, start: int, threshold: float | None, measure: Measure
    ) -> RunScore:
        run, point = self._run, self._point
        curve = self.curve()
        progress = curve if measure == "return" else self.curve(measure)
        first = None if threshold is None or not self.learns else progress.first_at(threshold)
        met_untrained = first is not None and progress.env_steps[first] == 0
        if met_untrained:
            first = None
        return RunScore(
            contestant=contestant.name,
            assignment=run.assignment,
            run=run.path,
            seed=run.config.seed,
            subject=self._subject.key,
            played=self._final,
            env_steps=point.env_steps if contestant.learns else 0,
            time_s=point.time_s if contestant.learns else math.nan,
            area=progress.area(start, self._budget.env_steps) if self.learns else math.nan,
            area_in_episodes=self._area_in_episodes(progress, start, measure),
            env_steps_to_threshold=None if first is None else int(progress.env_steps[first]),
            time_s_to_threshold=None if first is None else float(progress.time_s[first]),
            met_untrained=met_untrained,
            curve=curve,
        )

    @property
    def _final(self) -> Measured:
        """At the budget."""
        at = self._point
        for one in self._measured[-1:]:
            if one.env_steps == at.env_steps:
                return one.cut(self._budget.num_episodes)
        return Measured(at.env_steps, at.first_seed, {AS_LEARNED: np.empty(0)})

    def final(self, measure: Measure) -> float:
        """What the run has at the budget; NaN if it is unknown, or an advantage nobody learned."""
        if measure == "advantage" and not self.learns:
            return math.nan
        return _height(self._final, measure)

    def curve(self, measure: Measure = "return") -> Curve:
        """Its evaluations up to the budget, without those that do not have the measure."""
        heights = [(one.env_steps, _height(one, measure)) for one in self._measured]
        known = [(n, self._time_s[n], height) for n, height in heights if math.isfinite(height)]
        return Curve(*np.array(known, np.float64).reshape(-1, 3).T)

    def _area_in_episodes(self, curve: Curve, start: int, measure: Measure) -> Floats:
        """The area under each episode's own curve, of the episodes that all evaluations played."""
        rows = [
            one.learned - (0.0 if measure == "return" or one.random is None else one.random)
            for one in self._measured
            if one.env_steps in curve.env_steps
        ]
        num = min(map(len, rows), default=0)
        # An area is a sum of the evaluations' heights, each times what an area of 1 there is worth.
        of_one = [replace(curve, returns=one) for one in np.eye(len(rows))]
        weights = [one.area(start, self._budget.env_steps) for one in of_one]
        return np.array(weights) @ np.array([row[:num] for row in rows]).reshape(len(rows), num)


def _height(played: Measured, measure: Measure) -> float:
    """The mean of an evaluation; NaN if it does not have the measure."""
    if measure == "return":
        return played.mean()
    return played.mean() - played.mean(played.in_place) if played.in_place else math.nan


def _standing(runs: Sequence[RunScore], *, is_proportion: bool) -> Standing:
    known = [run for run in runs if math.isfinite(run.score)]
    scores, luck = [run.score for run in known], luck_of(known)
    mean = score = UNKNOWN
    if is_proportion and known:
        score = mean = estimate_of(
            [run.played.learned for run in known],
            Unit.SEEDS,
            share_episodes=share_episodes(run.played.first_seed for run in known),
            is_proportion=True,
        )
    elif known:
        score, mean = interquartile_mean_interval([scores], luck), mean_interval([scores], luck)
    areas = [run.area for run in runs]
    area = None
    if all(map(math.isfinite, areas)):
        are_shared = share_episodes(run.played.first_seed for run in runs)
        of_areas = shared_luck([run.area_in_episodes for run in runs]) if are_shared else NO_LUCK
        area = interquartile_mean_interval([areas], of_areas)
    return Standing(
        contestant=runs[0].contestant,
        subject=runs[0].subject,
        score=score,
        mean=mean,
        area=area,
        num_reached=sum(run.env_steps_to_threshold is not None for run in runs),
        env_steps_to_threshold=_median([run.env_steps_to_threshold for run in runs]),
        time_s_to_threshold=_median([run.time_s_to_threshold for run in runs]),
        runs=tuple(runs),
    )


def _median(values: Sequence[float | None]) -> float | None:
    """The median, None counting as infinitely late; None if that is the median."""
    median = float(np.median([math.inf if v is None else v for v in values]))
    return median if math.isfinite(median) else None
