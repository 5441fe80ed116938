import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxrl.orchestrator.measure import statistics
from muxrl.orchestrator.measure.statistics import difference_interval, mean_interval

returns = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20)


def test_every_seed_weighs_the_same_however_many_episodes_it_has() -> None:
    assert mean_interval([[1.0, 3.0], [8.0, 8.0, 8.0, 8.0]]).mean == pytest.approx(5.0)


def test_constant_returns_have_an_interval_of_no_width() -> None:
    estimate = mean_interval([[7.0] * 5])
    assert (estimate.mean, estimate.low, estimate.high) == (7.0, 7.0, 7.0)
    difference = difference_interval([[8.0] * 3], [[7.0] * 3])
    assert (difference.mean, difference.low, difference.high) == (1.0, 1.0, 1.0)


def test_episodes_are_drawn_inside_their_own_seed() -> None:
    """Seeds far apart, episodes alike: between-seed spread does not enter a stratified interval."""
    estimate = mean_interval([[0.0] * 4, [100.0] * 4])
    assert (estimate.low, estimate.high) == (50.0, 50.0)


def test_two_numbers_by_hand() -> None:
    """Resampled means of {0, 2} are 0, 1, 2 with 1/4, 1/2, 1/4, so 95 % reach from 0 to 2.

    Widened by sqrt(2 / 1) and t / z with one degree of freedom: 1 ± sqrt(2) · 12.706 / 1.960.
    """
    estimate = mean_interval([[0.0, 2.0]])
    reach = math.sqrt(2) * 12.7062 / 1.95996
    assert (estimate.low, estimate.high) == pytest.approx((1 - reach, 1 + reach), rel=1e-4)


def test_one_observation_gives_a_mean_and_no_interval() -> None:
    estimate = mean_interval([[3.0]])
    assert estimate.mean == 3.0
    assert math.isnan(estimate.low)
    assert math.isnan(estimate.high)
    assert math.isnan(difference_interval([[3.0]], [[1.0, 2.0]]).low)


@pytest.mark.parametrize("strata", [[], [[]], [[1.0], []], [[math.nan, 1.0]], [[math.inf]]])
def test_what_has_no_mean_is_refused(strata: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="a mean needs"):
        mean_interval(strata)


@given(returns, st.floats(-100, 100))
def test_moving_all_returns_moves_the_interval(values: list[float], shift: float) -> None:
    here = mean_interval([values], num_resamples=50)
    there = mean_interval([np.array(values) + shift], num_resamples=50)
    expected = (here.mean + shift, here.low + shift, here.high + shift)
    found = (there.mean, there.low, there.high)
    assert found == pytest.approx(expected, abs=1e-3, nan_ok=True)


@given(returns.filter(lambda values: len(values) > 1))
def test_the_same_seed_gives_the_same_interval(values: list[float]) -> None:
    first = mean_interval([values], seed=3, num_resamples=50)
    assert first == mean_interval([values], seed=3, num_resamples=50)
    assert first.low <= first.high


@pytest.mark.parametrize("num_episodes", [5, 20])
def test_intervals_of_a_mean_cover_it_95_times_in_100(num_episodes: int) -> None:
    rng = np.random.default_rng(num_episodes)
    hits = 0
    for trial in range(600):
        interval = mean_interval([rng.normal(size=num_episodes)], seed=trial, num_resamples=400)
        hits += interval.low <= 0 <= interval.high
    assert 0.91 < hits / 600 < 0.98  # 600 trials: a standard deviation of 0.9 %


@pytest.mark.parametrize("sizes", [(3, 2), (5, 3), (10, 3), (3, 3, 2), (20, 4)])
def test_intervals_over_strata_of_unequal_size_cover_at_least_95_times_in_100(
    sizes: tuple[int, ...],
) -> None:
    rng = np.random.default_rng(sum(sizes))
    hits = 0
    for trial in range(600):
        strata = [rng.normal(size=size) for size in sizes]
        interval = mean_interval(strata, seed=trial, num_resamples=400)
        hits += interval.low <= 0 <= interval.high
    assert hits / 600 > 0.92


def test_a_small_stratum_with_the_larger_spread_is_not_drowned_in_a_large_one() -> None:
    """One factor for all of them, sqrt(N / (N - K)), and their common N - K covered 82 %."""
    rng = np.random.default_rng(4)
    hits = 0
    for trial in range(600):
        strata = [rng.normal(size=10), rng.normal(0.0, 3.0, 3)]
        interval = mean_interval(strata, seed=trial, num_resamples=400)
        hits += interval.low <= 0 <= interval.high
    assert hits / 600 > 0.89  # (3, 3) with such spreads: 91 %


@given(st.integers(1, 4), st.integers(2, 6))
def test_strata_of_one_size_have_the_factor_and_the_freedom_of_all_numbers(
    num_strata: int, size: int
) -> None:
    rng = np.random.default_rng(size)
    strata = [rng.normal(size=size) for _ in range(num_strata)]
    found = statistics._Bootstrap.of(strata, np.random.default_rng(0), 50)
    again = np.random.default_rng(0)
    means = np.mean([statistics._resampled_means(a, again, 50) for a in strata], axis=0)
    num, freedom = num_strata * size, num_strata * (size - 1)
    expected = (means - found.mean) * math.sqrt(num / freedom)
    assert found.deviations == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert found.degrees_of_freedom == freedom


def test_a_stratum_of_one_number_leaves_the_interval_unknown() -> None:
    """Nothing is known of its spread, and half of the mean is its."""
    estimate = mean_interval([[1.0, 2.0, 3.0], [10.0]])
    assert estimate.mean == 6.0
    assert math.isnan(estimate.low)
    assert math.isnan(difference_interval([[1.0, 2.0], [3.0]], [[1.0, 2.0]]).high)


def test_intervals_of_a_difference_cover_it_with_unequal_spreads() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for trial in range(600):
        strata = [rng.normal(1.0, 1.0, 20), rng.normal(3.0, 1.0, 20)]
        other_strata = [rng.normal(0.0, 5.0, 6), rng.normal(2.0, 5.0, 6)]
        interval = difference_interval(strata, other_strata, seed=trial, num_resamples=400)
        hits += interval.low <= 1.0 <= interval.high
    assert 0.91 < hits / 600 < 0.985


def test_one_stratum_of_seed_means_covers_what_training_again_would_bring() -> None:
    rng = np.random.default_rng(2)
    hits = 0
    for trial in range(600):
        means = [rng.normal(rng.normal(), 3.0, 20).mean() for _ in range(5)]
        interval = mean_interval([means], seed=trial, num_resamples=400)
        hits += interval.low <= 0 <= interval.high
    assert 0.91 < hits / 600 < 0.985


def test_many_episodes_are_drawn_in_slices_of_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "_MAX_DRAWN", 100)
    estimate = mean_interval([np.arange(30.0)], num_resamples=500)
    assert estimate.low < 14.5 < estimate.high
