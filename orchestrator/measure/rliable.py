"""Statistics over runs as rliable defines them: the field's own numbers for comparing algorithms.

Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (arXiv
2108.13264). One score for each run; runs come as *strata*, one array for each task, and the
bootstrap draws runs again inside their own task, so intervals speak of training with any seed.
Intervals are plain percentiles, so that they are comparable with published ones; unlike those of
`statistics` they are *not* widened, and too narrow with few runs.

`scipy.stats.bootstrap` has no strata, and draws one resample at a time where multinomial weights
give all of them in one product, so the resampling here is numpy's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from muxrl.orchestrator.measure.statistics import (
    CONFIDENCE,
    NUM_RESAMPLES,
    Estimate,
    Floats,
    Line,
    checked,
    checked_strata,
)

_TAILS = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2


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
    strata: Sequence[ArrayLike], *, seed: int = 0, num_resamples: int = NUM_RESAMPLES
) -> Estimate:
    """The interquartile mean over runs and tasks, with its stratified bootstrap interval.

    The scores of all tasks go into one trimmed mean. With three runs the interval reaches from the
    worst to the best and covers about 75 %.

    Args:
        strata: one array ``[num_runs]`` for each task, on one scale.
        seed: of the resampling.
        num_resamples: as in `mean_interval`.

    Returns:
        The interquartile mean as the estimate's mean; NaN at both ends if every task has one run.

    Raises:
        ValueError: as `mean_interval`.
    """
    arrays = checked_strata(strata, "mean")
    estimate = interquartile_mean(np.concatenate(arrays))
    if _have_one_run(arrays):
        return Estimate(estimate, math.nan, math.nan)
    rng = np.random.default_rng(seed)
    drawn = np.concatenate(
        [a[rng.integers(len(a), size=(num_resamples, len(a)))] for a in arrays], axis=1
    )
    low, high = np.quantile(_middle_mean(drawn), _TAILS)
    return Estimate(estimate, float(low), float(high))


def probability_of_improvement(
    first: Sequence[ArrayLike],
    second: Sequence[ArrayLike],
    *,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
) -> Estimate:
    """How likely a run of the first has a higher score than one of the second, on the same task.

    For each task the Mann-Whitney statistic, the part of all pairs of runs in which the first is
    higher, ties counting one half; then the mean over tasks (section 4.3).
    Bootstrapped as `interquartile_mean_interval`, runs of both drawn independently.

    Args:
        first: one array ``[num_runs]`` for each task.
        second: the same, tasks in the same order.
        seed: of the resampling.
        num_resamples: as in `mean_interval`.

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
    rng = np.random.default_rng(seed)
    estimate, resampled = 0.0, np.zeros(num_resamples)
    runs = [[checked(stratum) for stratum in strata] for strata in (first, second)]
    for ours, theirs in zip(*runs, strict=True):
        wins = (ours[:, None] > theirs) + 0.5 * (ours[:, None] == theirs)
        estimate += float(wins.mean()) / len(first)
        weights = [_weights(len(scores), rng, num_resamples) for scores in (ours, theirs)]
        resampled += np.einsum("ri,ij,rj->r", weights[0], wins, weights[1]) / len(first)
    if any(map(_have_one_run, runs)):
        return Estimate(estimate, math.nan, math.nan)
    low, high = np.quantile(resampled, _TAILS)
    return Estimate(estimate, float(low), float(high))


def performance_profile(
    strata: Sequence[ArrayLike], thresholds: ArrayLike, *, seed: int = 0, num_resamples: int = 2_000
) -> Line:
    """The part of all runs whose score is above a threshold, for each of `thresholds`.

    The run-score distribution of section 4.2, bootstrapped as `interquartile_mean_interval`. Where
    one profile is above another at every threshold, the first is stochastically better; where they
    cross, neither is.

    Args:
        strata: one array ``[num_runs]`` for each task, on one scale.
        thresholds: ``[num_thresholds]``.
        seed: of the resampling.
        num_resamples: fewer than for a number, since a band's edge is drawn.

    Returns:
        By threshold, the part and its pointwise 95 % interval, whose ends are NaN where every task
        has one run.

    Raises:
        ValueError: as `mean_interval`.
    """
    arrays = checked_strata(strata, "profile")
    places = checked(thresholds)
    above = [(array[:, None] > places).astype(np.float64) for array in arrays]
    fractions = np.concatenate(above).mean(axis=0)
    low = high = np.full(len(places), math.nan)
    if not _have_one_run(arrays):
        rng = np.random.default_rng(seed)
        num = sum(map(len, arrays))
        parts = [_weights(len(a), rng, num_resamples) @ a * len(a) / num for a in above]
        low, high = np.quantile(np.sum(parts, axis=0), _TAILS, axis=0)
    rows = np.stack([places, fractions, low, high], axis=1).tolist()
    return [(place, Estimate(*estimate)) for place, *estimate in rows]


def _have_one_run(strata: Sequence[Floats]) -> bool:
    """Whether every task has one run, so that nothing is known of how runs differ."""
    return all(len(runs) == 1 for runs in strata)


def _weights(num: int, rng: np.random.Generator, num_resamples: int) -> Floats:
    """How often each run is drawn in each resample, divided by `num`: ``[num_resamples, num]``."""
    return rng.multinomial(num, np.full(num, 1 / num), size=num_resamples) / num
