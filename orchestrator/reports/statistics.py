"""Means with honest intervals, from few episodes and few seeds.

Observations come as *strata*: one array for each seed, holding one number for each episode. The
mean is the mean of the strata's means, so every seed weighs the same. The interval is the
percentile bootstrap with episodes drawn again inside their own seed, each seed's part widened by
``sqrt(n / (n - 1))`` (n episodes), the whole by ``t / z`` (Student's t against the normal
quantile): a plain percentile interval is too narrow in small samples (Hesterberg, "What Teachers
Should Know About the Bootstrap", 2015). Of seven normal numbers it covers 88 %, the widened one
95 %.

The degrees of freedom are Satterthwaite's, seeds taken to vary alike: N - K of K seeds with N
episodes in all, if each has equally many, else fewer: a seed of few episodes is as much of the mean
as any other, and less is known of it. With a seed of one episode there is no interval at all.

Such an interval speaks of *these* seeds: of the policies that were trained. What training once
more would bring is another question, answered by one stratum that holds each seed's mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.95
NUM_RESAMPLES = 10_000
"""The ends of a 95 % interval then move by about 1 % of its width from one RNG seed to another."""
_MAX_DRAWN = 4_000_000  # numbers held at once, 32 MB
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % interval, NaN at both ends where a stratum of one cannot give one."""

    mean: float
    low: float
    high: float


def mean_interval(
    strata: Sequence[ArrayLike],
    *,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
) -> Estimate:
    """The mean of the strata's means, with its bootstrap interval.

    Args:
        strata: one array ``[num_episodes]`` for each seed; one array alone is the usual bootstrap.
        seed: of the resampling, so that a report can be made again to the last digit.
        num_resamples: more make the ends steadier, not the interval narrower.

    Returns:
        The estimate; NaN at both ends if a stratum has one number, since nothing is known of how
        its numbers differ.

    Raises:
        ValueError: no stratum, an empty one, or a number that is not finite.
    """
    rng = np.random.default_rng(seed)
    return _estimate(_Bootstrap.of(strata, rng, num_resamples))


def difference_interval(
    strata: Sequence[ArrayLike],
    other_strata: Sequence[ArrayLike],
    *,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
) -> Estimate:
    """`mean_interval` of the first minus the second, for two independent samples.

    The degrees of freedom are Welch's, so neither equal variances nor equal sizes are assumed.

    Raises:
        ValueError: as `mean_interval`.
    """
    rng = np.random.default_rng(seed)
    return _estimate(
        _Bootstrap.of(strata, rng, num_resamples), _Bootstrap.of(other_strata, rng, num_resamples)
    )


def interquartile_mean(values: ArrayLike) -> float:
    """The mean of the middle half: ``floor(n / 4)`` numbers are left out at each end.

    Raises:
        ValueError: no number, or one that is not finite.
    """
    ordered = np.sort(_checked(values))
    trimmed = len(ordered) // 4
    return float(ordered[trimmed : len(ordered) - trimmed].mean())


def interquartile_mean_interval(
    strata: Sequence[ArrayLike],
    *,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
) -> Estimate:
    """The interquartile mean over runs and tasks, with its stratified bootstrap interval.

    As Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice"
    (arXiv 2108.13264), and their library rliable: one score for each run and task, all of them in
    one trimmed mean, runs drawn again inside their own task, plain percentiles. It speaks of
    training on any seed, since runs are what is drawn. It is *not* widened as the intervals above,
    so that figures are the field's own; with few runs it is too narrow, with three of them it
    reaches from the worst to the best and covers about 75 %.

    Args:
        strata: one array ``[num_runs]`` for each task, on one scale.
        seed: of the resampling.
        num_resamples: as in `mean_interval`.

    Returns:
        The interquartile mean as the estimate's mean; NaN at both ends if every task has one run.

    Raises:
        ValueError: as `mean_interval`.
    """
    arrays = [_checked(stratum) for stratum in strata]
    if not arrays:
        raise ValueError("a mean needs at least one stratum")
    estimate = interquartile_mean(np.concatenate(arrays))
    if all(len(array) == 1 for array in arrays):
        return Estimate(estimate, math.nan, math.nan)
    rng = np.random.default_rng(seed)
    drawn = np.concatenate(
        [a[rng.integers(len(a), size=(num_resamples, len(a)))] for a in arrays], axis=1
    )
    drawn.sort(axis=1)
    trimmed = drawn.shape[1] // 4
    resampled = drawn[:, trimmed : drawn.shape[1] - trimmed].mean(axis=1)
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
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
    higher, ties counting one half; then the mean over tasks (Agarwal et al. 2021, section 4.3).
    Bootstrapped as `interquartile_mean_interval`, runs of both drawn independently.

    Args:
        first: one array ``[num_runs]`` for each task.
        second: the same, tasks in the same order.
        seed: of the resampling.
        num_resamples: as in `mean_interval`.

    Returns:
        The probability as the estimate's mean; NaN at both ends if either has one run everywhere,
        since nothing is then known of how its runs differ.

    Raises:
        ValueError: they have not the same number of tasks; else as `mean_interval`.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} tasks against {len(second)}: a pair is of one task")
    if not first:
        raise ValueError("a probability needs at least one task")
    rng = np.random.default_rng(seed)
    estimate, resampled, is_alone = 0.0, np.zeros(num_resamples), [True, True]
    for ours, theirs in zip(map(_checked, first), map(_checked, second), strict=True):
        wins = (ours[:, None] > theirs) + 0.5 * (ours[:, None] == theirs)
        estimate += float(wins.mean()) / len(first)
        weights = [_weights(len(runs), rng, num_resamples) for runs in (ours, theirs)]
        resampled += np.einsum("ri,ij,rj->r", weights[0], wins, weights[1]) / len(first)
        is_alone = [
            alone and len(runs) == 1 for alone, runs in zip(is_alone, (ours, theirs), strict=True)
        ]
    if any(is_alone):
        return Estimate(estimate, math.nan, math.nan)
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(estimate, float(low), float(high))


@dataclass(frozen=True)
class Profile:
    """The part of the runs above each threshold, with pointwise 95 % intervals.

    All arrays are ``[num_thresholds]``; both ends are NaN where every task has one run.
    """

    thresholds: Floats
    fractions: Floats
    low: Floats
    high: Floats


def performance_profile(
    strata: Sequence[ArrayLike],
    thresholds: ArrayLike,
    *,
    seed: int = 0,
    num_resamples: int = 2_000,
) -> Profile:
    """The part of all runs whose score is above a threshold, for each of `thresholds`.

    The run-score distribution of Agarwal et al. 2021 (section 4.2), bootstrapped as
    `interquartile_mean_interval`. Where one profile is above another at every threshold, the first
    is stochastically better; where they cross, neither is.

    Args:
        strata: one array ``[num_runs]`` for each task, on one scale.
        thresholds: ``[num_thresholds]``.
        seed: of the resampling.
        num_resamples: fewer than for a number, since a band's edge is drawn.

    Raises:
        ValueError: as `mean_interval`.
    """
    arrays = [_checked(stratum) for stratum in strata]
    if not arrays:
        raise ValueError("a profile needs at least one stratum")
    places = _checked(thresholds)
    above = [(array[:, None] > places).astype(np.float64) for array in arrays]
    fractions = np.concatenate(above).mean(axis=0)
    if all(len(array) == 1 for array in arrays):
        unknown = np.full(len(places), math.nan)
        return Profile(places, fractions, unknown, unknown)
    rng = np.random.default_rng(seed)
    num = sum(map(len, arrays))
    parts = [_weights(len(a), rng, num_resamples) @ a * len(a) / num for a in above]
    resampled = np.sum(parts, axis=0)
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return Profile(places, fractions, low, high)


def _weights(num: int, rng: np.random.Generator, num_resamples: int) -> Floats:
    """How often each of `num` runs is drawn, by resample, as a part of 1: ``[resamples, num]``."""
    return rng.multinomial(num, np.full(num, 1 / num), size=num_resamples) / num


@dataclass(frozen=True)
class _Bootstrap:
    """A mean, how resampled means stray from it (already unbiased), and on what basis.

    Without degrees of freedom nothing is known of how far they stray.
    """

    mean: float
    deviations: Floats
    degrees_of_freedom: float

    @classmethod
    def of(
        cls, strata: Sequence[ArrayLike], rng: np.random.Generator, num_resamples: int
    ) -> _Bootstrap:
        arrays = [_checked(stratum) for stratum in strata]
        if not arrays:
            raise ValueError("a mean needs at least one stratum")
        mean = float(np.mean([array.mean() for array in arrays]))
        sizes = [len(array) for array in arrays]
        if min(sizes) == 1:
            return cls(mean, np.full(num_resamples, math.nan), 0.0)
        # Resampling has the variance sum((x - mean)^2) / n; an unbiased one divides by n - 1.
        deviations = [
            (_resampled_means(array, rng, num_resamples) - array.mean()) * math.sqrt(n / (n - 1))
            for array, n in zip(arrays, sizes, strict=True)
        ]
        # Exact, so that equal sizes give whole degrees: Student's quantile has steps at 2 and 3.
        variances = [Fraction(1, n) for n in sizes]
        freedom = sum(variances) ** 2 / sum(
            variance**2 / (n - 1) for variance, n in zip(variances, sizes, strict=True)
        )
        return cls(mean, np.mean(deviations, axis=0), float(freedom))


def _estimate(first: _Bootstrap, second: _Bootstrap | None = None) -> Estimate:
    mean, deviations, freedom = first.mean, first.deviations, first.degrees_of_freedom
    if second is not None:
        mean -= second.mean
        deviations = deviations - second.deviations
        if first.degrees_of_freedom and second.degrees_of_freedom:
            variances = float(np.var(first.deviations)), float(np.var(second.deviations))
            if sum(variances) > 0:
                freedom = sum(variances) ** 2 / (
                    variances[0] ** 2 / first.degrees_of_freedom
                    + variances[1] ** 2 / second.degrees_of_freedom
                )
        else:
            freedom = 0.0
    if not freedom:
        return Estimate(mean, math.nan, math.nan)
    tail = (1 + CONFIDENCE) / 2
    widened = deviations * (_student_t_quantile(tail, freedom) / NormalDist().inv_cdf(tail))
    low, high = np.quantile(widened, [1 - tail, tail])
    return Estimate(mean, mean + float(low), mean + float(high))


def _checked(values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64).ravel()
    if not len(array):
        raise ValueError("a mean needs at least one number")
    if not np.isfinite(array).all():
        raise ValueError("a mean needs finite numbers; leave NaN and infinities out first")
    return array


def _resampled_means(values: Floats, rng: np.random.Generator, num_resamples: int) -> Floats:
    """Means of `num_resamples` samples of the same size, drawn with replacement."""
    means = np.empty(num_resamples)
    step = max(1, _MAX_DRAWN // len(values))
    for start in range(0, num_resamples, step):
        stop = min(start + step, num_resamples)
        drawn = rng.integers(len(values), size=(stop - start, len(values)))
        means[start:stop] = values[drawn].mean(axis=1)
    return means


def _student_t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Student's t, within 1 % at 97.5 %: exact at 1 and 2 degrees, else expanded around z."""
    if degrees_of_freedom < 2:  # Welch's are seldom whole; fewer degrees are wider: stay safe
        return math.tan(math.pi * (probability - 0.5))
    central = 2 * probability - 1
    if degrees_of_freedom < 3:
        return central * math.sqrt(2 / (1 - central**2))
    z, nu = NormalDist().inv_cdf(probability), degrees_of_freedom
    return (
        z
        + (z**3 + z) / (4 * nu)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * nu**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * nu**3)
    )
