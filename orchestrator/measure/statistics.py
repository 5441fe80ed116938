"""Computes means, proportions and differences with 95 % intervals, in closed form.

The `Unit` of an interval says what would be repeated. An interval over *episodes* is about the
trained policies: what would the mean be if they played other episodes? An interval over *seeds* is
about training again: each run counts as one number, its mean over its episodes. Evaluations of
different seeds usually play different episodes, so the luck of the episodes shows in how the runs
differ. If runs did play the same episodes, the variance that these share is added
(`shared_variance`).

Numbers come as *strata*, one array for each seed (or for each set of opponents). The mean is the
mean of the strata's means, so every stratum has the same weight. Intervals are Student's t with
Satterthwaite's degrees of freedom, assuming that all strata have the same variance: N - K for K
strata of equal size with N numbers in all; fewer for unequal sizes, because a small stratum has the
same weight but a less certain mean. There is no interval if a stratum has one number, or if
the numbers are few and all equal (`has_interval`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtrit  # scipy.stats takes a second to import

from muxrl.orchestrator.measure.rounding import is_wide

CONFIDENCE = 0.95
NUM_RESAMPLES = 10_000
"""With so many, the ends of a 95 % interval move by about 1 % of its width between RNG seeds."""
_TAIL = (1 + CONFIDENCE) / 2
NORMAL = float(ndtri(_TAIL))
"""How many standard deviations a normal interval reaches on each side: 1.96."""
_LEAST_WON_OR_LOST = 20
Floats = NDArray[np.float64]


class Unit(StrEnum):
    """What an interval is over, that is, what would be repeated."""

    EPISODES = "episodes"
    """Other episodes of the same policies."""
    SEEDS = "seeds"
    """Training again."""
    PAIRS = "pairs of seeds"
    """Training again both runs that meet in a game."""


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % interval; both ends are NaN if there is no interval."""

    mean: float
    low: float
    high: float


def unknown(mean: float) -> Estimate:
    """Returns the estimate of a mean without an interval."""
    return Estimate(mean, math.nan, math.nan)


UNKNOWN = unknown(math.nan)
"""The estimate if there is no number at all."""
Line = Sequence[tuple[float, Estimate]]
"""A line to be drawn: estimates with their places on the horizontal axis."""


@dataclass(frozen=True)
class Variance:
    """The estimated variance of a mean.

    Attributes:
        value: the estimate; NaN: unknown.
        freedom: degrees of freedom of the estimate.
    """

    value: float
    freedom: float

    def __add__(self, other: Variance) -> Variance:
        """Returns the variance of a sum of independent means; freedom is Satterthwaite's."""
        total = self.value + other.value
        parts = self.value**2 / self.freedom + other.value**2 / other.freedom
        return Variance(total, total**2 / parts if parts > 0 else self.freedom)

    def share(self, shared: Variance) -> float:
        """Returns which proportion of the sum of this variance and `shared` is this one.

        If `shared` is the variance that runs share, this proportion of the runs counts as
        independent.
        """
        total = self.value + shared.value
        return self.value / total if total > 0 else 1.0

    @property
    def quantile(self) -> float:
        """How many standard deviations the 95 % interval reaches on each side."""
        return float(stdtrit(self.freedom, _TAIL))

    def around(self, mean: float) -> Estimate:
        """Returns a mean of this variance with its interval."""
        reach = self.quantile * math.sqrt(self.value)
        return Estimate(mean, mean - reach, mean + reach)


NO_VARIANCE = Variance(0.0, math.inf)
"""The shared variance of runs that share no episodes."""


def mean_interval(strata: Sequence[ArrayLike], shared: Variance = NO_VARIANCE) -> Estimate:
    """Returns the mean of the strata's means, with its interval.

    Args:
        strata: one array ``[num_numbers]`` each.
        shared: a variance that all numbers share, see `shared_variance`.

    Returns:
        The estimate; NaN at both ends if a stratum has one number, whose variance is unknown, or if
        `has_interval` says that there is no interval.

    Raises:
        ValueError: there is no stratum, a stratum is empty, or a number is not finite.
    """
    arrays = checked_strata(strata, "mean")
    mean = _mean(arrays)
    if not (has_interval(arrays) or shared.value > 0):
        return unknown(mean)
    return (variance_of(arrays) + shared).around(mean)


def difference_interval(strata: Sequence[ArrayLike], other_strata: Sequence[ArrayLike]) -> Estimate:
    """Returns the mean of the first sample less that of an independent second one (Welch).

    Raises:
        ValueError: as `mean_interval`.
    """
    ours, theirs = checked_strata(strata, "mean"), checked_strata(other_strata, "mean")
    difference = _mean(ours) - _mean(theirs)
    if not (has_interval(ours) or has_interval(theirs)):
        return unknown(difference)
    return (variance_of(ours) + variance_of(theirs)).around(difference)


def estimate_of(
    runs: Sequence[Floats],
    unit: Unit,
    *,
    share_episodes: bool = False,
    is_proportion: bool = False,
) -> Estimate:
    """Returns the mean over runs of their means over episodes, with its interval.

    Args:
        runs: for each run ``[num_episodes]``, NaN for an episode that does not count.
        unit: what the interval is over.
        share_episodes: whether the k-th episode is the same in all runs.
        is_proportion: whether every number is 0 or 1; the interval is then Wilson's.

    Raises:
        ValueError: as `mean_interval`.
    """
    known = [run[np.isfinite(run)] for run in runs]
    if unit is Unit.EPISODES:
        return wilson_interval(known) if is_proportion else mean_interval(known)
    means = [checked(run).mean() for run in known]
    shared = shared_variance(runs) if share_episodes else NO_VARIANCE
    if not is_proportion:
        return mean_interval([means], shared)
    return part_over_seeds(means, sum(map(len, known)), shared)


def part_over_seeds(
    parts: ArrayLike, num_episodes: int, shared: Variance = NO_VARIANCE
) -> Estimate:
    """Returns the mean of runs' proportions, with Wilson's interval.

    The interval is that of as many independent episodes as would have the variance of the mean.

    Args:
        parts: the proportions ``[num_runs]``, from 0 to 1.
        num_episodes: number of episodes of all runs, which all count if nothing varies.
        shared: as for `mean_interval`.
    """
    known = checked(parts, "proportion")
    variance = variance_of([known]) + shared
    return _wilson(float(known.mean()), variance, num_episodes, variance.quantile)


def are_proportions(values: Iterable[Floats]) -> bool:
    """Whether all finite numbers are 0 or 1."""
    return all(np.isin(array[np.isfinite(array)], (0.0, 1.0)).all() for array in values)


def are_won_or_lost(returns: Sequence[Floats]) -> bool:
    """Whether returns only say if an episode was won or lost, as 1 or 0.

    Zeros alone may be of any scale, and a few zeros and ones may be counts, so both numbers must
    occur, and there must be enough episodes.
    """
    known = np.concatenate(returns)
    known = known[np.isfinite(known)]
    return len(known) >= _LEAST_WON_OR_LOST and np.unique(known).tolist() == [0.0, 1.0]


def shared_variance(runs: Sequence[Floats]) -> Variance:
    """Returns the variance of a mean over runs that is due to episodes which all runs played.

    If an episode was easy for all runs, this does not show in how the runs differ. The result is
    the variance component of the episodes in a table of runs by episodes, without replication
    (Searle, Casella & McCulloch 1992, "Variance Components", chapter 4).

    Args:
        runs: for each run ``[num_episodes]``; episodes in which a run has NaN are left out.
    """
    num = min(map(len, runs), default=0)
    table = np.array([run[:num] for run in runs], np.float64).reshape(len(runs), num)
    table = table[:, np.isfinite(table).all(axis=0)]
    num_runs, num_episodes = table.shape
    if num_runs < 2 or num_episodes < 2:
        return NO_VARIANCE
    by_episode = table.mean(axis=0)
    rest = table - table.mean(axis=1, keepdims=True) - by_episode + table.mean()
    residual = float((rest**2).sum()) / ((num_runs - 1) * (num_episodes - 1))
    component = float(by_episode.var(ddof=1)) - residual / num_runs
    return Variance(max(0.0, component) / num_episodes, num_episodes - 1)


def wilson_interval(strata: Sequence[ArrayLike], share: float = 1.0) -> Estimate:
    """Returns the mean of the means of strata of zeros and ones, with Wilson's interval.

    Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference": 0 of 20
    has the interval [0, 0.16], not [0, 0].

    Args:
        strata: one array ``[num_numbers]`` each.
        share: the proportion of numbers that count as independent.

    Raises:
        ValueError: as `mean_interval`.
    """
    arrays = checked_strata(strata, "proportion")
    num = sum(map(len, arrays))
    share = max(share, 1 / num)
    parts = [array.var() / (len(array) * share) for array in arrays]
    variance = Variance(float(np.sum(parts)) / len(arrays) ** 2, math.inf)
    return _wilson(_mean(arrays), variance, num * share, NORMAL)


def _wilson(part: float, variance: Variance, num: float, quantile: float) -> Estimate:
    """Returns Wilson's interval for as many independent episodes as would have this variance.

    If nothing varies, there is no such number, and all `num` episodes count (Korn & Graubard 1998,
    "Confidence Intervals for Proportions with Small Expected Number of Positive Counts").
    """
    if math.isnan(variance.value):
        return unknown(part)
    spread = part * (1 - part)
    effective = spread / variance.value if spread > 0 and variance.value > 0 else num
    weight = quantile**2 / effective
    centre = (part + weight / 2) / (1 + weight)
    reach = math.sqrt(weight * (spread + weight / 4)) / (1 + weight)
    return Estimate(part, max(0.0, centre - reach), min(1.0, centre + reach))


def has_interval(strata: Sequence[Floats]) -> bool:
    """Whether numbers show how far off their mean may be: they vary, or there are many.

    The variance of equal numbers is no estimate: equal numbers do not show that the next one will
    be equal, too. But N numbers all lie on one side of the median with a probability of only
    2 ** (1 - N) (Thompson 1936, "On Confidence Ranges for the Median"): if six are equal, an
    interval of width 0 contains the median with 95 %; with fewer, no interval does. For K strata,
    N - K + 1 takes the place of N.

    Args:
        strata: one array ``[num_numbers, ...]`` each.
    """
    freedom = sum(map(len, strata)) - len(strata)
    return 2.0**-freedom <= 1 - CONFIDENCE or any(
        is_wide(float(np.ptp(stratum, axis=0).max()), float(np.abs(stratum).max()))
        for stratum in strata
    )


def variance_of(strata: Sequence[Floats]) -> Variance:
    """Returns the variance of the strata's mean of means; unknown if a stratum has one number."""
    sizes = np.array([len(stratum) for stratum in strata])
    if sizes.min() == 1:
        return Variance(math.nan, 1.0)
    parts = [stratum.var(ddof=1) / len(stratum) for stratum in strata]
    freedom = (1 / sizes).sum() ** 2 / (1 / sizes**2 / (sizes - 1)).sum()
    return Variance(float(np.sum(parts)) / len(strata) ** 2, float(freedom))


def widened(
    deviations: Floats, num: int, num_strata: int, shared: Variance = NO_VARIANCE
) -> Floats:
    """Returns the ends ``[2, ...]`` of an interval, relative to the estimate, from resamples.

    A plain percentile interval is too narrow in small samples. So deviations are multiplied by
    ``sqrt(N / (N - K))``, which makes the variance of resamples unbiased, and by Student's t
    quantile over the normal one (Hesterberg 2015, "What Teachers Should Know About the Bootstrap").

    Args:
        deviations: of the statistic in resamples from the estimate, ``[num_resamples, ...]``.
        num: N, how many numbers were resampled.
        num_strata: K, in how many strata.
        shared: as for `mean_interval`.
    """
    deviations = deviations * math.sqrt(num / (num - num_strata))
    freedom = float(num - num_strata)
    if shared.value > 0:
        freedom = (Variance(float(deviations.var()), freedom) + shared).freedom
        noise = np.random.default_rng(1).normal(0.0, math.sqrt(shared.value), deviations.shape)
        deviations = deviations + noise
    factor = float(stdtrit(freedom, _TAIL)) / NORMAL
    return np.quantile(deviations * factor, [1 - _TAIL, _TAIL], axis=0)


def checked(values: ArrayLike, what: str = "mean") -> Floats:
    """Returns the numbers as one flat array; `what` is the statistic that an error names.

    Raises:
        ValueError: there is no number, or a number is not finite.
    """
    array = np.asarray(values, dtype=np.float64).ravel()
    if not len(array):
        raise ValueError(f"a {what} needs at least one number")
    if not np.isfinite(array).all():
        raise ValueError(f"a {what} needs finite numbers; leave NaN and infinities out first")
    return array


def checked_strata(strata: Sequence[ArrayLike], what: str) -> list[Floats]:
    """Returns each stratum as one flat array; `what` is the statistic that an error names.

    Raises:
        ValueError: there is no stratum; else as `checked`.
    """
    if not len(strata):
        raise ValueError(f"a {what} needs at least one stratum")
    return [checked(stratum, what) for stratum in strata]


def _mean(strata: Sequence[Floats]) -> float:
    return float(np.mean([stratum.mean() for stratum in strata]))
