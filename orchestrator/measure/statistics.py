"""Means with bootstrap intervals that are widened for small samples.

Observations come as *strata*: one array for each seed, holding one number for each episode. The
mean is the mean of the strata's means, so every seed has the same weight. The interval is a
percentile bootstrap that draws episodes again inside their own seed. Each seed's deviations are
widened by ``sqrt(n / (n - 1))`` (n episodes), and all of them by ``t / z`` (Student's t quantile
by the normal one), since a plain percentile interval is too narrow in small samples (Hesterberg,
"What Teachers Should Know About the Bootstrap", 2015): of seven normal numbers it covers 88 %, the
widened one 95 %. `scipy.stats.bootstrap` has neither strata nor the widening.

The degrees of freedom are Satterthwaite's, all seeds being assumed to have the same variance: N - K
for K seeds with N episodes in all, if each seed has equally many; fewer otherwise, because a seed
with few episodes has the same weight in the mean and is known less well. With a seed of one episode
there is no interval at all.

Such an interval speaks of *these* seeds, the policies that were trained. For an interval that
speaks of training again, pass one stratum that holds each seed's mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtrit  # what scipy.stats calls; that would take a second to load

CONFIDENCE = 0.95
NUM_RESAMPLES = 10_000
"""The ends of a 95 % interval then move by about 1 % of its width from one RNG seed to another."""
_MAX_DRAWN = 4_000_000  # numbers held at once, 32 MB
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % interval; both ends are NaN where there are too few numbers for one."""

    mean: float
    low: float
    high: float


UNKNOWN = Estimate(math.nan, math.nan, math.nan)
"""The estimate of no number at all."""
Line = Sequence[tuple[float, Estimate]]
"""What is drawn: estimates by their place on the horizontal axis."""


def mean_interval(
    strata: Sequence[ArrayLike], *, seed: int = 0, num_resamples: int = NUM_RESAMPLES
) -> Estimate:
    """The mean of the strata's means, with its bootstrap interval.

    Args:
        strata: one array ``[num_episodes]`` for each seed; one array alone is the usual bootstrap.
        seed: of the resampling, so that a report can be reproduced to the last digit.
        num_resamples: more make the ends steadier, not the interval narrower.

    Returns:
        The estimate; NaN at both ends if a stratum has one number, whose variance is unknown.

    Raises:
        ValueError: there is no stratum, an empty one, or a number that is not finite.
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
    """The mean of the first less that of the second, for two independent samples.

    As `mean_interval`, with Welch's degrees of freedom: variances and sizes may differ.

    Raises:
        ValueError: as `mean_interval`.
    """
    rng = np.random.default_rng(seed)
    return _estimate(
        _Bootstrap.of(strata, rng, num_resamples), _Bootstrap.of(other_strata, rng, num_resamples)
    )


@dataclass(frozen=True)
class _Bootstrap:
    """A mean and how resampled means deviate from it (widened by ``sqrt(n / (n - 1))``).

    With 0 degrees of freedom the deviations are unknown.
    """

    mean: float
    deviations: Floats
    degrees_of_freedom: float

    @classmethod
    def of(
        cls, strata: Sequence[ArrayLike], rng: np.random.Generator, num_resamples: int
    ) -> _Bootstrap:
        arrays = checked_strata(strata, "mean")
        mean = float(np.mean([array.mean() for array in arrays]))
        sizes = [len(array) for array in arrays]
        if min(sizes) == 1:
            return cls(mean, np.full(num_resamples, math.nan), 0.0)
        # Resampling has the variance sum((x - mean)^2) / n; an unbiased one divides by n - 1.
        deviations = [
            (_resampled_means(array, rng, num_resamples) - array.mean()) * math.sqrt(n / (n - 1))
            for array, n in zip(arrays, sizes, strict=True)
        ]
        # Fractions, so that equal sizes give exactly N - K degrees.
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
    low, high = widened_quantiles(deviations, freedom)
    return Estimate(mean, mean + float(low), mean + float(high))


def widened_quantiles(deviations: Floats, freedom: float) -> tuple[Floats, Floats]:
    """The ends of the interval of deviations ``[num_resamples, ...]``, by Student's t wider."""
    tail = (1 + CONFIDENCE) / 2
    widened = deviations * (float(stdtrit(freedom, tail)) / float(ndtri(tail)))
    low, high = np.quantile(widened, [1 - tail, tail], axis=0)
    return low, high


def checked(values: ArrayLike) -> Floats:
    """Returns the numbers as one flat array.

    Raises:
        ValueError: there is none, or one is not finite.
    """
    array = np.asarray(values, dtype=np.float64).ravel()
    if not len(array):
        raise ValueError("a mean needs at least one number")
    if not np.isfinite(array).all():
        raise ValueError("a mean needs finite numbers; leave NaN and infinities out first")
    return array


def checked_strata(strata: Sequence[ArrayLike], what: str) -> list[Floats]:
    """Returns each stratum as `checked` has it; `what` is made of them.

    Raises:
        ValueError: there is none, or as `checked`.
    """
    if not len(strata):
        raise ValueError(f"a {what} needs at least one stratum")
    return [checked(stratum) for stratum in strata]


def _resampled_means(values: Floats, rng: np.random.Generator, num_resamples: int) -> Floats:
    """Means of `num_resamples` samples of the same size, drawn with replacement."""
    means = np.empty(num_resamples)
    step = max(1, _MAX_DRAWN // len(values))
    for start in range(0, num_resamples, step):
        stop = min(start + step, num_resamples)
        drawn = rng.integers(len(values), size=(stop - start, len(values)))
        means[start:stop] = values[drawn].mean(axis=1)
    return means
