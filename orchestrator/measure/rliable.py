"""The statistics over runs that rliable defines: the field's own numbers for comparing algorithms.

Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (arXiv
2108.13264). Each run has one score. Runs come as *strata*, one array for each task, and
intervals are over seeds. The numbers are those of rliable, but the intervals are not: with three
runs, rliable's percentile intervals cover only 75 %. Here interquartile means are resampled within
tasks and widened by `statistics.widened`; proportions of runs have score intervals in closed form.
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
"""The probabilities that are tried as ends of an interval; finer than what is printed."""


def interquartile_mean(values: ArrayLike) -> float:
    """Returns the mean of the middle half, without ``floor(n / 4)`` numbers at each end.

    Raises:
        ValueError: there is no number, or a number is not finite.
    """
    return float(_middle_mean(checked(values)))


def _middle_mean(values: Floats) -> Floats:
    """Returns the interquartile mean, as ``scipy.stats.trim_mean(values, 0.25, -1)`` does."""
    num = values.shape[-1]
    trimmed = num // 4
    return np.sort(values)[..., trimmed : num - trimmed].mean(axis=-1)


def interquartile_mean_interval(
    strata: Sequence[ArrayLike],
    shared: Variance = NO_VARIANCE,
    *,
    num_resamples: int = NUM_RESAMPLES,
) -> Estimate:
    """Returns the interquartile mean over runs and tasks, with a stratified bootstrap interval.

    It is one trimmed mean over the scores of all tasks.

    Args:
        strata: one array ``[num_runs]`` for each task, on one scale.
        shared: as for `mean_interval`.
        num_resamples: more resamples make the ends less random, not the interval narrower.

    Returns:
        The interquartile mean as the estimate's mean; NaN at both ends if `has_interval` says that
        there is no interval.

    Raises:
        ValueError: as `mean_interval`.
    """
    arrays = checked_strata(strata, "mean")
    estimate = interquartile_mean(np.concatenate(arrays))
    if not has_interval(arrays):
        return unknown(estimate)
    rng = np.random.default_rng(0)  # fixed, so that reports are reproduced exactly
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
    """Returns how likely a run of `first` scores higher than a run of `second` on the same task.

    It is the mean over tasks of the Mann-Whitney statistic: the proportion of pairs of runs in
    which the run of `first` is higher, where ties count one half (section 4.3).

    The interval has the probabilities that are less than 1.96 of their own standard deviations
    from the estimate:
    Newcombe 2006, "Confidence intervals for an effect size measure based on the Mann-Whitney
    statistic. Part 2", method 5; with the continuity correction of that statistic, half a pair. So
    three runs that are all above three others give 1.00 [0.45, 1.00], where a bootstrap would give
    [1.00, 1.00].

    Args:
        first: one array ``[num_runs]`` for each task.
        second: as `first`, with the tasks in the same order.
        share: the proportion of runs that count as independent, see `Variance.share`.

    Returns:
        The probability as the estimate's mean; NaN at both ends if either has one run for every
        task, whose variance is then unknown.

    Raises:
        ValueError: the numbers of tasks differ; else as `mean_interval`.
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
    """Returns for each threshold the proportion of runs whose score is above it.

    This is the run-score distribution of section 4.2, with Wilson's pointwise intervals. If one
    profile is above another at every threshold, the first is stochastically better; if they cross,
    neither is.

    Args:
        strata: one array ``[num_runs]`` for each task, on one scale.
        thresholds: ``[num_thresholds]``.
        share: as for `probability_of_improvement`.

    Returns:
        For each threshold the proportion and its pointwise 95 % interval; the ends are NaN if every
        task has one run.

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
