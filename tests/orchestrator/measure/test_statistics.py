"""Means, proportions and differences are as computed by hand; `test_calibration` has sweeps."""

import math

import numpy as np
import pytest
from scipy import stats

from muxrl.orchestrator.measure.statistics import (
    NO_VARIANCE,
    Unit,
    Variance,
    difference_interval,
    estimate_of,
    mean_interval,
    shared_variance,
    widened,
    wilson_interval,
)


@pytest.mark.parametrize("value", [0.0, 0.1, -7.0])
def test_equal_numbers_have_an_interval_only_if_they_are_many(value: float) -> None:
    """A sign test's least p-value is above 5 % for five (2 / 2**5), not for six (2 / 2**6)."""
    few, noisy = [value] * 5, [value, np.nextafter(value, 9.0), *[value] * 3]
    for numbers, is_known in ((few, False), (noisy, False), ([*few, value], True)):
        estimate = mean_interval([numbers])
        assert estimate.mean == pytest.approx(value)
        assert math.isnan(estimate.low) != is_known
        assert math.isnan(estimate.high) != is_known
        for other, varies in (([0.0, 1.0], True), ([0.0] * 3, False)):
            difference = difference_interval([numbers], [other])
            assert difference.mean == pytest.approx(value - np.mean(other))
            assert math.isnan(difference.low) != (is_known or varies)
        assert math.isfinite(mean_interval([numbers], Variance(1.0, 99.0)).low), "they share more"
    many = mean_interval([[value] * 6])
    assert (many.low, many.high) == pytest.approx((value, value))


def test_the_difference_between_strata_does_not_widen_the_interval() -> None:
    estimate = mean_interval([[0.0] * 4, [100.0] * 4])
    assert (estimate.low, estimate.high) == (50.0, 50.0)


@pytest.mark.parametrize(
    ("strata", "mean"),
    [([[3.0]], 3.0), ([[1.0, 2.0, 3.0], [10.0]], 6.0)],  # half of the mean is a single number
)
def test_a_stratum_of_one_number_leaves_the_interval_unknown(
    strata: list[list[float]], mean: float
) -> None:
    """The spread of a stratum of one number is unknown."""
    estimate = mean_interval(strata)
    assert estimate.mean == mean
    assert math.isnan(estimate.low)
    assert math.isnan(estimate.high)
    difference = difference_interval(strata, [[1.0, 2.0]])
    assert math.isnan(difference.low)
    assert math.isnan(difference.high)


@pytest.mark.parametrize("strata", [[], [[]], [[1.0], []], [[math.nan, 1.0]], [[math.inf]]])
def test_numbers_without_a_mean_are_refused(strata: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="a mean needs"):
        mean_interval(strata)


@pytest.mark.parametrize(
    ("sizes", "spreads"),
    [((5, 3), (1, 1)), ((10, 3), (1, 1)), ((3, 3, 2), (1, 1, 1)), ((10, 3), (1, 3))],
)
def test_intervals_over_strata_of_unequal_size_and_spread_cover_the_mean(
    sizes: tuple[int, ...], spreads: tuple[float, ...]
) -> None:
    rng, hits = np.random.default_rng(sum(sizes)), 0
    for _ in range(1_000):
        strata = [rng.normal(0.0, s, n) for n, s in zip(sizes, spreads, strict=True)]
        found = mean_interval(strata)
        hits += found.low <= 0 <= found.high
    assert hits / 1_000 > 0.90


def test_wilson_s_interval_equals_published_numbers() -> None:
    """From Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I."""
    found = wilson_interval([[1.0] * 81 + [0.0] * 182])
    assert (found.low, found.high) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    none = wilson_interval([[0.0] * 20])
    assert (none.mean, none.low, none.high) == pytest.approx((0.0, 0.0, 0.1611), abs=5e-5)
    every = wilson_interval([[1.0] * 29])
    assert (every.low, every.high) == pytest.approx((0.8830, 1.0), abs=5e-5)


def test_a_proportion_over_seeds_counts_as_many_episodes_as_vary_like_the_seeds() -> None:
    runs = [np.repeat([1.0, 0.0], [k, 20 - k]) for k in (4, 10, 7)]
    part, error = np.mean([0.2, 0.5, 0.35]), np.std([0.2, 0.5, 0.35], ddof=1) / math.sqrt(3)
    quantile = stats.t.ppf(0.975, 2)
    num = part * (1 - part) / error**2
    found = estimate_of(runs, Unit.SEEDS, is_proportion=True)
    for end in (found.low, found.high):  # the score is as far away as its own deviation at that end
        assert abs(end - part) == pytest.approx(quantile * math.sqrt(end * (1 - end) / num))


def test_seeds_that_never_win_do_not_show_that_none_ever_will() -> None:
    found = estimate_of([np.zeros(20)] * 3, Unit.SEEDS, is_proportion=True)
    assert (found.mean, found.low) == (0.0, 0.0)
    assert found.high == pytest.approx(0.2358, abs=1e-4)  # t² / (60 + t²), with 2 degrees


def test_one_seed_has_no_interval_over_seeds() -> None:
    for is_proportion in (False, True):
        found = estimate_of([np.array([0.0, 1.0])], Unit.SEEDS, is_proportion=is_proportion)
        assert found.mean == 0.5
        assert math.isnan(found.low)


def test_shared_luck_is_what_runs_have_in_common() -> None:
    """Computed by hand for two runs of two episodes: the second is 4 better for both runs.

    Nothing else varies, so that the variance of the means by episode is 8, and over two episodes 4.
    """
    found = shared_variance([np.array([0.0, 4.0]), np.array([1.0, 5.0])])
    assert (found.value, found.freedom) == (4.0, 1)
    assert shared_variance([np.array([0.0, 4.0]), np.array([4.0, 0.0])]).value == 0.0
    assert shared_variance([np.array([0.0, 4.0])]) == NO_VARIANCE
    gaps = shared_variance([np.array([0.0, math.nan, 4.0]), np.array([1.0, 9.0, 5.0, 7.0])])
    assert gaps.value == 4.0


def test_an_interval_of_runs_that_share_their_episodes_covers_the_mean() -> None:
    rng = np.random.default_rng(3)
    hits = without = 0
    for _ in range(500):
        luck = rng.normal(size=20)
        runs = [luck + rng.normal(0.0, 0.1) for _ in range(3)]
        found = estimate_of(runs, Unit.SEEDS, share_episodes=True)
        hits += found.low <= 0 <= found.high
        apart = estimate_of(runs, Unit.SEEDS)
        without += apart.low <= 0 <= apart.high
    assert 0.92 < hits / 500 < 0.98
    assert without / 500 < 0.75


def test_variances_of_a_sum_have_satterthwaite_s_degrees_of_freedom() -> None:
    assert Variance(3.0, 4.0) + Variance(1.0, 2.0) == Variance(4.0, 16 / (9 / 4 + 1 / 2))
    assert Variance(3.0, 4.0) + NO_VARIANCE == Variance(3.0, 4.0)
    assert Variance(0.0, 4.0) + NO_VARIANCE == Variance(0.0, 4.0)
    assert Variance(3.0, 2.0).share(Variance(1.0, 9.0)) == 0.75
    assert Variance(0.0, 2.0).share(NO_VARIANCE) == 1.0


def test_deviations_are_widened_to_student_s_interval() -> None:
    """The deviations are normal, with the variance of a resampled mean of five numbers."""
    deviations = np.random.default_rng(0).normal(0.0, math.sqrt(4 / 5 / 5), 200_000)
    low, high = widened(deviations, 5, 1)
    reach = stats.t.ppf(0.975, 4) * math.sqrt(1 / 5)
    assert (-low, high) == pytest.approx((reach, reach), rel=0.02)
