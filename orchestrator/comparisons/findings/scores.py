"""Scores runs, contestants and the labels of a role: returns, learning curves, intervals.

A run is the unit: its score for a subject is the mean return over the episodes of its evaluation at
the budget. So intervals are over training with other seeds.

Labels of a role are compared with each other among the same others, and each of them with random
agents in its place and with the policies that it began with. Runs with the same others are one
stratum, like a task in a benchmark of many tasks: runs are resampled within a stratum, and
differences are taken within it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from muxrl.orchestrator.comparisons.findings.compared_runs import Budget, point_at
from muxrl.orchestrator.comparisons.findings.contestants import Contestant
from muxrl.orchestrator.measure.against_random import share_episodes
from muxrl.orchestrator.measure.judged import plays_itself
from muxrl.orchestrator.measure.rliable import (
    interquartile_mean,
    interquartile_mean_interval,
    performance_profile,
    probability_of_improvement,
)
from muxrl.orchestrator.measure.statistics import (
    NO_VARIANCE,
    UNKNOWN,
    Estimate,
    Floats,
    Line,
    Variance,
    are_proportions,
    mean_interval,
    part_over_seeds,
    shared_variance,
    variance_of,
)
from muxrl.orchestrator.measure.subjects import Measured, Subject, measured
from muxrl.orchestrator.records.conditions import Condition, untrained
from muxrl.orchestrator.records.evaluations import AS_LEARNED, EvaluationPoint
from muxrl.orchestrator.records.recorded_run import RecordedRun

if TYPE_CHECKING:
    from pandas import DataFrame

Rows = list[dict[str, Any]]
Axis = Literal["env_steps", "time_s"]
Measure = Literal["return", "advantage"]
"""What shows how fast a subject learned. The advantage is its return less that of random agents in
its place among the same others. Since the others learn, too, a return may be high only because they
are still untrained."""
_NUM_THRESHOLDS = 60  # points of a drawn profile
_NUM_PLACES = 60  # points of a drawn curve: few enough for a small file, more than evaluations
_NUM_RESAMPLES = 1_000  # of a drawn band, whose edge may be a pixel off

HALFWAY = 0.5
"""Default place of a threshold between random and the best: low enough to be reached."""


@dataclass(frozen=True)
class Curve:
    """One run's evaluations, in order of env steps; all arrays are ``[num_evaluations]``.

    Attributes:
        env_steps: env steps of training before each evaluation, strictly rising.
        time_s: seconds of training before each evaluation, NaN where they were not recorded.
        returns: mean over the episodes of each evaluation, of returns or of advantages.
    """

    env_steps: Floats
    time_s: Floats
    returns: Floats

    def area(self, start: float, stop: float) -> float:
        """Returns the area under the curve from `start` to `stop`, divided by their distance.

        So it is a mean height, in the unit of a return, by trapezoids between evaluations. It is
        NaN if the curve does not cover `start` to `stop`, or has one evaluation.
        """
        if len(self.returns) < 2 or not self.env_steps[0] <= start < stop <= self.env_steps[-1]:
            return math.nan
        inside = self.env_steps[(self.env_steps > start) & (self.env_steps < stop)]
        places = np.concatenate([[start], inside, [stop]])
        heights = np.interp(places, self.env_steps, self.returns)
        return float(np.trapezoid(heights, places) / (stop - start))

    def first_at(self, threshold: float) -> int | None:
        """Returns the index of the first evaluation whose return is at least `threshold`, or None.

        There is no interpolation, since nothing was measured between two evaluations.
        """
        reached = np.flatnonzero(self.returns >= threshold)
        return int(reached[0]) if len(reached) else None


def band(curves: Sequence[Curve], axis: Axis, shared: Variance) -> Line:
    """Returns the interquartile mean over runs, on the part of the axis that all curves cover.

    Args:
        curves: curves of runs that differ only in the seed.
        axis: the horizontal axis.
        shared: the shared variance of their last evaluations, which is used for all evaluations.

    Returns:
        The line; () if it cannot be drawn: a run has one evaluation, or its times are unknown.
    """
    if not curves or any(len(curve.returns) < 2 for curve in curves):
        return ()
    ends = [(getattr(curve, axis)[0], getattr(curve, axis)[-1]) for curve in curves]
    start, stop = max(first for first, _ in ends), min(last for _, last in ends)
    if not stop > start:  # also if they are NaN
        return ()
    # Places are the evaluations of one run; on the time axis, where evaluations of runs lie at
    # different places, a grid is added.
    sparsest = min(curves, key=lambda curve: len(curve.returns))
    own = getattr(sparsest, axis)
    own = own[(own > start) & (own < stop)]
    places = np.unique(np.concatenate([[start, stop], own]))
    if axis == "time_s":
        places = np.unique(np.concatenate([places, np.linspace(start, stop, _NUM_PLACES)]))
    table = np.array([np.interp(places, getattr(one, axis), one.returns) for one in curves])
    return [
        (place, interquartile_mean_interval([column], shared, num_resamples=_NUM_RESAMPLES))
        for place, column in zip(places, table.T, strict=True)
    ]


def common_variance(played: Sequence[Measured], others: Sequence[Measured] = ()) -> Variance:
    """Returns the variance of runs' mean score that is due to episodes that several runs played.

    Args:
        played: for each run: the evaluation that is its score.
        others: if given, for each run: another evaluation, which is subtracted from its score.
    """
    first_seeds = [[one.first_seed for one in those] for those in (played, others)]
    if not any(map(share_episodes, first_seeds)):
        return NO_VARIANCE
    pairs = list(zip(played, others, strict=False))
    if not pairs:
        return shared_variance([one.learned for one in played])
    if any(one.first_seed != other.first_seed for one, other in pairs):
        return common_variance(played) + common_variance(others)
    num = min(len(one.learned) for one in (*played, *others))
    return shared_variance([one.learned[:num] - other.learned[:num] for one, other in pairs])


@dataclass(frozen=True)
class Scores:
    """The scores of all runs.

    Attributes:
        rows: a row for every contestant, subject and run, in this order; see `score_runs`.
        measures: by subject's key: what its area and threshold are of. It is the advantage over
            random in its place, if all evaluations of all runs that learn for it have this.
        thresholds: by subject's key: the threshold, by default halfway from random to the best
            contestant. Subjects for which no contestant is above random have none.
    """

    rows: Rows
    measures: dict[str, Measure]
    thresholds: dict[str, float]


def score_runs(
    contestants: Sequence[Contestant],
    subjects: Sequence[Subject],
    budget: Budget,
    given: Mapping[str, float],
    random: Mapping[str, float],
) -> Scores:
    """Scores all runs of contestants.

    Besides the columns of the frame "runs", a row has

    - `played`: the evaluation at the budget; `return` is its mean. Only the last evaluation of a
      run measures untrained agents.
    - `curve`: the evaluations up to the budget. `area_under_curve` is of the subject's `Measure`,
      and NaN if there is no such curve, or if nobody learned to play these agents.
    - `area_in_episodes`: the area under the curve of each episode that all evaluations played.
    - `met_untrained`: whether the policies met the threshold before training, which does not count.
    - `id`: the target of links to the row on the page.

    Args:
        contestants: the contestants whose runs are scored.
        subjects: the subjects that are measured.
        budget: after how much training runs are scored.
        given: by subject's key: a threshold that the user gave, which is a return.
        random: by subject's key: the mean return of random agents.
    """
    found = Scores([], {}, {})
    played: dict[tuple[RecordedRun, str], _Played] = {}
    for subject in subjects:
        key = subject.key
        of_runs = {run: _Played(run, subject, budget) for c in contestants for run in c.runs}
        has_advantage = key not in given and _have_advantages(of_runs.values())
        measure = found.measures[key] = "advantage" if has_advantage else "return"
        low = 0.0 if has_advantage else random.get(key, math.inf)
        finals = ([of_runs[run].height(measure) for run in c.runs] for c in contestants)
        known = [list(filter(math.isfinite, values)) for values in finals]
        best = max((interquartile_mean(values) for values in known if values), default=-math.inf)
        if best > low:
            found.thresholds[key] = low + HALFWAY * (best - low)
        played |= {(run, key): one for run, one in of_runs.items()}
    found.thresholds.update(given)
    learning = [c for c in contestants if c.learns]
    start = max((run.points[0].env_steps for c in learning for run in c.runs), default=0)
    for place, contestant in enumerate(contestants):
        for key, measure in found.measures.items():
            for run in contestant.runs:
                row = played[run, key].row(start, found.thresholds.get(key), measure)
                about = {"contestant": contestant.name, "subject": key, **row}
                if not contestant.learns:
                    about |= {"env_steps": 0, "time_s": math.nan}
                found.rows.append({"id": f"c{place}-{run.config.seed}", **about})
    return found


def known_of(runs: DataFrame) -> DataFrame:
    """Returns the rows with a known score: some of the agents were in the evaluation."""
    return runs[runs["return"].astype(float).notna()]


def iqm_or_part(
    scores: Sequence[float], episodes: Sequence[Floats], num_parts: int, *, are_shared: bool
) -> Estimate:
    """Returns the interquartile mean of runs' scores, or the mean if they are proportions.

    Args:
        scores: one score for each run.
        episodes: for each run, its number in each episode.
        num_parts: number of episodes of all runs, if scores are proportions; 0: they are not.
        are_shared: whether runs played the same episodes.
    """
    shared = shared_variance(episodes) if are_shared else NO_VARIANCE
    if num_parts:
        return part_over_seeds(scores, num_parts, shared)
    return interquartile_mean_interval([scores], shared)


def standings(runs: DataFrame, scores: Scores, asked: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yields a row for each contestant and subject.

    `iqm` is the interquartile mean over runs. Of a metric that is 0 or 1 in every episode of all
    runs, `iqm` is the `mean`, with Wilson's interval, and so is `area`; `asked` has the keys of
    subjects that may be such metrics. `area` is None without curves. `env_steps_to_threshold` and
    `time_s_to_threshold` are medians over all runs, None: less than half of the runs reached it.
    """
    played_as = dict(tuple(runs.groupby("subject").played))
    parts = {k for k in asked if are_proportions(one.learned for one in played_as[k])}
    for (contestant, subject), ours in runs.groupby(["contestant", "subject"], sort=False):
        known = known_of(ours)
        reached, played = list(known["return"]), list(known.played)
        mean = iqm = UNKNOWN
        if reached:
            returns = [one.learned for one in played]
            are_shared = share_episodes(one.first_seed for one in played)
            num = int(known.num_episodes.sum()) if subject in parts else 0
            iqm = iqm_or_part(reached, returns, num, are_shared=are_shared)
            mean = iqm if num else mean_interval([reached], common_variance(played))
        areas, area = list(ours.area_under_curve), None
        if all(map(math.isfinite, areas)):
            are_shared = share_episodes(one.first_seed for one in ours.played)
            is_part = subject in parts and scores.measures[subject] == "return"
            num = int(ours.num_episodes.sum()) if is_part else 0
            area = iqm_or_part(areas, list(ours.area_in_episodes), num, are_shared=are_shared)
        yield {
            "contestant": contestant,
            "subject": subject,
            "num_runs": len(ours),
            "iqm": iqm,
            "mean": mean,
            "area": area,
            "threshold": scores.thresholds.get(subject),
            "num_reached": int(ours.env_steps_to_threshold.count()),
            "env_steps_to_threshold": _median(ours.env_steps_to_threshold),
            "time_s_to_threshold": _median(ours.time_s_to_threshold),
            "time_s": sum(ours.time_s) / len(ours),
            "first_run": ours.id.iloc[0],
        }


def curves(runs: DataFrame) -> Iterator[dict[str, Any]]:
    """Yields a row for each evaluation of each run and subject."""
    for run in runs.to_dict("records"):
        about = {name: run[name] for name in ("contestant", "seed", "subject")}
        curve = run["curve"]
        for n, time_s, value in zip(curve.env_steps, curve.time_s, curve.returns, strict=True):
            yield {**about, "env_steps": int(n), "time_s": float(time_s), "return": float(value)}


def _have_advantages(played: Iterable[_Played]) -> bool:
    curves = [(one.curve(), one.curve("advantage")) for one in played if one.learns]
    return bool(curves) and all(
        len(returns.returns) == len(advantage.returns) > 0 for returns, advantage in curves
    )


class _Played:
    """A subject's numbers in the evaluations of one run up to the budget.

    Of the evaluation at the budget, only as many episodes count as all runs have. Of an earlier
    one, as many count as were played with all agents as learned.
    """

    def __init__(self, run: RecordedRun, subject: Subject, budget: Budget) -> None:
        self._run, self._budget, self._point = run, budget, point_at(run, budget)
        servers = run.servers
        # Empty for a metric of the whole episode.
        playing = {run.server_of[a] for a in subject.agents if a in run.server_of}
        self.learns = any(servers[server_id].learns for server_id in playing or servers)
        """Whether a server learns that plays any of the agents."""
        at = self._point
        in_place = _in_place(run, at, subject.agents, playing)
        seen = run.seen_by(*playing) if len(playing) == 1 else run  # without the one it replaced
        until = [point for point in seen.points if point.env_steps <= at.env_steps]
        found = measured(seen.evaluations, until, subject, in_place)
        self._measured = [one.cut(len(one.learned)) for one in found]
        self._final = Measured(at.env_steps, at.first_seed, {AS_LEARNED: np.empty(0)})
        if self._measured and self._measured[-1].env_steps == at.env_steps:
            self._final = self._measured[-1].cut(budget.num_episodes)
        if playing and not any(map(run.has_updates, playing)):  # its policies are untrained
            same = {untrained(in_place): self._final.learned} if in_place else {}
            self._final = replace(self._final, episodes={**self._final.episodes, **same})

    def row(self, start: int, threshold: float | None, measure: Measure) -> dict[str, Any]:
        run, point, final = self._run, self._point, self._final
        curve = self.curve()
        progress = curve if measure == "return" else self.curve(measure)
        first = None if threshold is None or not self.learns else progress.first_at(threshold)
        met_untrained = first is not None and progress.env_steps[first] == 0
        if met_untrained:
            first = None
        return {
            "assignment": run.assignment,
            "seed": run.config.seed,
            "return": final.mean(),
            "num_episodes": int(np.isfinite(final.learned).sum()),
            "env_steps": point.env_steps,
            "time_s": point.time_s,
            "area_under_curve": (
                progress.area(start, self._budget.env_steps) if self.learns else math.nan
            ),
            "env_steps_to_threshold": None if first is None else int(progress.env_steps[first]),
            "time_s_to_threshold": None if first is None else float(progress.time_s[first]),
            "random_in_place": None if final.random is None else final.mean(final.in_place),
            "run": run.path,
            "played": final,
            "curve": curve,
            "area_in_episodes": self._area_in_episodes(progress, start, measure),
            "met_untrained": met_untrained,
        }

    def height(self, measure: Measure) -> float:
        """Returns the measure at the budget; NaN if unknown, or an advantage of no learner."""
        if measure == "advantage" and not self.learns:
            return math.nan
        return _height(self._final, measure)

    def curve(self, measure: Measure = "return") -> Curve:
        """Returns the curve of evaluations up to the budget that have the measure."""
        heights = [(one.env_steps, one.time_s, _height(one, measure)) for one in self._measured]
        known = [one for one in heights if math.isfinite(one[-1])]
        return Curve(*np.array(known, np.float64).reshape(-1, 3).T)

    def _area_in_episodes(self, curve: Curve, start: int, measure: Measure) -> Floats:
        """Returns the area under each episode's curve, for episodes that all evaluations played."""
        rows = []
        for one in self._measured:
            if one.env_steps in curve.env_steps:
                less = one.random if measure == "advantage" else None
                less = np.zeros(len(one.learned)) if less is None else less
                num = min(len(one.learned), len(less))
                rows.append(one.learned[:num] - less[:num])
        num = min(map(len, rows), default=0)
        # An area is a weighted sum of heights: a weight is the area if only that height is 1.
        of_one = [replace(curve, returns=one) for one in np.eye(len(rows))]
        weights = [one.area(start, self._budget.env_steps) for one in of_one]
        return np.array(weights) @ np.array([row[:num] for row in rows]).reshape(len(rows), num)


def _in_place(
    run: RecordedRun, at: EvaluationPoint, agents: Sequence[str], playing: Iterable[str]
) -> str:
    """Returns the condition in which exactly these agents are random; "": there is none.

    If a server plays itself, the mean over all its agents says nothing, random or not; but one of
    its sides may have been replaced alone.
    """
    for server_id in playing:
        if set(run.servers[server_id].agents) == set(agents):
            return "" if plays_itself(run, server_id) else server_id
        for side, members in at.sides.get(server_id, {}).items():
            if set(members) == set(agents):
                return Condition(server_id, side).key or ""
    return ""


def _height(played: Measured, measure: Measure) -> float:
    """Returns the mean of an evaluation; NaN if it does not have the measure."""
    if measure == "return":
        return played.mean()
    return played.mean() - played.mean(played.in_place) if played.in_place else math.nan


def _median(values: Sequence[float | None]) -> float | None:
    """Returns the median, where None counts as infinity; None if the median is infinite."""
    median = float(np.median([math.inf if v is None else v for v in values]))
    return median if math.isfinite(median) else None


def compare_roles(
    contestants: Sequence[Contestant], subjects: Sequence[Subject], runs: DataFrame
) -> tuple[Rows, Rows]:
    """Compares the labels of each role among the same others.

    Roles that only one label played, or whose labels have no others in common, are left out.

    Returns:
        The rows of the frame "roles", and those of "pairings", for every ordered pair of labels.
        Rows of "roles" also have `profile`, the proportion of a label's runs above each return, and
        `among`, the common others. `random_in_place` is the mean over the same runs with random
        actions in the role, None: unknown. `difference` is paired by seed and by others: None
        without a common seed, and without an interval if the labels share only one seed among some
        others.
    """
    by_name = {contestant.name: contestant for contestant in contestants}
    roles: Rows = []
    pairings: Rows = []
    for subject in (s for s in subjects if s.kind == "role"):
        known = known_of(runs[runs.subject == subject.key])
        playing = [by_name[name] for name in known.contestant]
        known = known.assign(
            label=[contestant.played[subject.name] for contestant in playing],
            among=[contestant.others(subject.name) for contestant in playing],
        )
        labels = list(dict.fromkeys(known.label))
        met_by = known.groupby("among").label.transform("nunique")
        known = known[met_by == len(labels)]
        among = list(dict.fromkeys(known[known.label.isin(labels[:1])].among))
        if len(labels) > 1 and among:
            known = known.sort_values("among", key=lambda by: by.map(among.index), kind="stable")
            by_label = {label: known[known.label == label] for label in labels}
            roles += _labels(subject.name, by_label, among)
            pairings += _pairings(subject.name, by_label, among)
    return roles, pairings


def once(pairings: DataFrame) -> DataFrame:
    """Returns each unordered pair of labels of a role once, in the order of labels."""
    place = {label: place for place, label in enumerate(dict.fromkeys(pairings["first"]))}
    return pairings[pairings["first"].map(place) < pairings["second"].map(place)]


def _strata(runs: DataFrame, column: str, among: Sequence[str]) -> list[Floats]:
    """Returns a column's numbers as strata, one for each set of others; they may be empty."""
    return [runs.loc[runs.among == others, column].to_numpy(np.float64) for others in among]


def _labels(
    role: str, by_label: Mapping[str, DataFrame], among: Sequence[str]
) -> Iterator[dict[str, Any]]:
    every = np.concatenate([np.asarray(ours["return"], np.float64) for ours in by_label.values()])
    margin = 0.02 * (every.max() - every.min()) or 1.0
    places = np.linspace(every.min() - margin, every.max() + margin, _NUM_THRESHOLDS)
    for label, ours in by_label.items():
        strata, shared = _strata(ours, "return", among), common_variance(list(ours.played))
        in_place = ours.random_in_place.dropna()
        yield {
            "role": role,
            "label": label,
            "num_runs": len(ours),
            "num_contexts": len(among),
            "iqm": interquartile_mean_interval(strata, shared),
            "random_in_place": float(np.mean(in_place)) if len(in_place) else None,
            "profile": performance_profile(strata, places, variance_of(strata).share(shared)),
            "among": tuple(among),
        }


def _pairings(
    role: str, by_label: Mapping[str, DataFrame], among: Sequence[str]
) -> Iterator[dict[str, Any]]:
    for (first, ours), (second, theirs) in permutations(by_label.items(), 2):
        pairs = ours.merge(theirs, on=["among", "seed"])
        shared = common_variance(list(pairs.played_x), list(pairs.played_y))
        pairs = pairs.assign(difference=pairs.return_x - pairs.return_y)
        differences = [of for of in _strata(pairs, "difference", among) if len(of)]
        one, other = (_strata(runs, "return", among) for runs in (ours, theirs))
        share = (variance_of(one) + variance_of(other)).share(shared)
        yield {
            "role": role,
            "first": first,
            "second": second,
            "improvement": probability_of_improvement(one, other, share),
            "difference": mean_interval(differences, shared) if differences else None,
            "num_pairs": len(pairs),
        }
