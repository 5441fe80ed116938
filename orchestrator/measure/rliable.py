"""The statistics over runs that rliable defines: the field's own numbers for comparing algorithms.

Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (arXiv
2108.13264). One score for each run; runs come as *strata*, one array for each task, and intervals
speak of training with any seed. The numbers are rliable's, their intervals are not: its percentiles
cover 75 % with three runs. Interquartile means are drawn again inside their task and widened as
`statistics.widened` says; parts of runs have score intervals in closed form.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from muxrl.orchestrator.measure.statistics import (
    NO_VARIANCE,
    NORMAL,
    NUM_RESAMPLES,
    Estimate,
    Floats,
    Line,
    Variance,
    checked,
    checked_strata,
    has_interval,
    unknown,
    widened,
    wilson_interval,
)

_PLACES = np.linspace(0.0, 1.0, 2_001)
"""Where a probability is tried for its interval: finer than what is printed of one."""


def interquartile_mean(values: ArrayLike) -> float:
    """The mean of the middle half: ``floor(n / 4)`` numbers are left out at each end.

    Raises:
        ValueError: there is no number, or one that is not finite.
    """
    return float(_middle_mean(checked(values)))


def _middle_mean(values: Floats) -> Floats:
    """Interquartile means along the last axis, as ``scipy.stats.trim_mean(values, 0.25, -1)``."""
    num = values.shape[-1]
    trimmed = num // 4
    return np.sort(values)[..., trimmed : num - trimmed].mean(axis=-1)


def interquartile_mean_interval(
    strata: Sequence[ArrayLike],
    shared: Variance = NO_VARIANCE,
    *,
    num_resamples: int = NUM_RESAMPLES,
) -> Estimate:
    """The interquartile mean over runs and tasks, with its stratified bootstrap interval.

    The scores of all tasks go into one trimmed mean.

    Args:
        strata: one array ``[num_runs]`` for each task, on one scale.
        shared: as for `mean_interval`.
        num_resamples: more make the ends steadier, not the interval narrower.

    Returns:
        The interquartile mean as the estimate's mean; NaN at both ends as `has_interval`
        says.

    Raises:
        ValueError: as `mean_interval`.
    """
    arrays = checked_strata(strata, "mean")
    estimate = interquartile_mean(np.concatenate(arrays))
    if not has_interval(arrays):
        return unknown(estimate)
    rng = np.random.default_rng(0)  # so that a report can be reproduced to the last digit
    drawn = np.concatenate(
        [a[rng.integers(len(a), size=(num_resamples, len(a)))] for a in arrays], axis=1
    )
    low, high = estimate + widened(
        _middle_mean(drawn) - estimate, drawn.shape[1], len(arrays), shared
    )
    return Estimate(estimate, float(low), float(high))


def probability_of_improvement(
    first: Sequence[ArrayLike], second: Sequence[ArrayLike], share: float = 1.0
) -> Estimate:
    """How likely a run of the first has a higher score than one of the second, on the same task.

    For each task the Mann-Whitney statistic, the part of all pairs of runs in which the first is
    higher, ties counting one half; then the mean over tasks (section 4.3).

    Its interval holds the probabilities that are less than 1.96 of their own standard deviations
    away: Newcombe 2006, "Confidence intervals for an effect size measure based on the Mann-Whitney
    statistic. Part 2", method 5; with the continuity correction of that statistic, half a pair. So
    three runs that are all above three others tell 1.00 [0.45, 1.00], where a bootstrap would say
    [1.00, 1.00].

    Args:
        first: one array ``[num_runs]`` for each task.
        second: the same, tasks in the same order.
        share: the part of the runs that count as independent, see `Variance.share`.

    Returns:
        The probability as the estimate's mean; NaN at both ends if either has one run for every
        task, whose variance is then unknown.

    Raises:
        ValueError: their numbers of tasks differ; else as `mean_interval`.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} tasks against {len(second)}: a pair is of one task")
    if not first:
        raise ValueError("a probability needs at least one task")
    runs = [[checked(stratum) for stratum in strata] for strata in (first, second)]
    estimate, variance, num_pairs = 0.0, np.zeros(len(_PLACES)), 0
    for ours, theirs in zip(*runs, strict=True):
        wins = (ours[:, None] > theirs) + 0.5 * (ours[:, None] == theirs)
        estimate += float(wins.mean()) / len(first)
        sizes = np.maximum(1.0, share * np.array(wins.shape))
        num_pairs += wins.size
        more = sizes.mean() - 1
        separate = 1 + more * ((1 - _PLACES) / (2 - _PLACES) + _PLACES / (1 + _PLACES))
        variance += _PLACES * (1 - _PLACES) * separate / sizes.prod() / len(first) ** 2
    if any(all(len(scores) == 1 for scores in of_tasks) for of_tasks in runs):
        return unknown(estimate)
    reach = NORMAL * np.sqrt(variance) + 0.5 / num_pairs
    near = _PLACES[np.abs(_PLACES - estimate) <= reach]
    low, high = near[[0, -1]] if len(near) else (estimate, estimate)
    return Estimate(estimate, min(estimate, float(low)), max(estimate, float(high)))


def performance_profile(
    strata: Sequence[ArrayLike], thresholds: ArrayLike, share: float = 1.0
) -> Line:
    """The part of all runs whose score is above a threshold, for each of `thresholds`.

    The run-score distribution of section 4.2, with Wilson's pointwise intervals. Where one profile
    is above another at every threshold, the first is stochastically better; where they cross,
    neither is.

    Args:
        strata: one array ``[num_runs]`` for each task, on one scale.
        thresholds: ``[num_thresholds]``.
        share: as for `probability_of_improvement`.

    Returns:
        By threshold, the part and its pointwise 95 % interval, whose ends are NaN where every task
        has one run.

    Raises:
        ValueError: as `mean_interval`.
    """
    arrays = checked_strata(strata, "profile")
    scores = np.concatenate(arrays)
    places = checked(thresholds).tolist()
    parts = [(place, wilson_interval([scores > place], share)) for place in places]
    if len(scores) == len(arrays):
        return [(place, unknown(part.mean)) for place, part in parts]
    return parts
