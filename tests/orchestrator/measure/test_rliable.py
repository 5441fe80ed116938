"""What compares algorithms: hand-worked cases, properties, and how often intervals cover."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, trim_mean

from muxrl.orchestrator.measure.rliable import (
    interquartile_mean,
    interquartile_mean_interval,
    performance_profile,
    probability_of_improvement,
)
from muxrl.orchestrator.measure.statistics import Line, mean_interval

scores = st.lists(st.integers(-50, 50).map(float), min_size=1, max_size=8)


def test_interquartile_mean_by_hand() -> None:
    assert interquartile_mean([100, 1, 2, 3, 4, 5, 6, -90]) == pytest.approx(3.5)  # 2, 3, 4, 5
    assert interquartile_mean([1, 2, 9]) == pytest.approx(4.0)  # too few to leave any out
    assert interquartile_mean([5]) == 5.0


def test_interquartile_mean_of_three_runs_reaches_from_the_worst_to_the_best() -> None:
    """One of 27 resamples is the worst thrice, 3.7 %: more than the 2.5 % left out at each end."""
    estimate = interquartile_mean_interval([[0.0, 3.0, 9.0]])
    assert (estimate.mean, estimate.low, estimate.high) == (4.0, 0.0, 9.0)


def test_interquartile_mean_over_tasks_draws_runs_inside_their_task() -> None:
    """Tasks far apart, runs alike: whatever is drawn, half of the scores are of each task."""
    estimate = interquartile_mean_interval([[0.0] * 4, [10.0] * 4])
    assert (estimate.mean, estimate.low, estimate.high) == (5.0, 5.0, 5.0)


def test_interquartile_mean_of_two_runs_by_hand() -> None:
    """Resampled means of {0, 2} are 0, 1, 2 with 1/4, 1/2, 1/4: 95 % reach from 0 to 2."""
    estimate = interquartile_mean_interval([[0.0, 2.0]])
    assert (estimate.mean, estimate.low, estimate.high) == (1.0, 0.0, 2.0)


def test_interquartile_mean_of_one_run_has_no_interval() -> None:
    estimate = interquartile_mean_interval([[3.0], [5.0]])
    assert estimate.mean == 4.0
    assert math.isnan(estimate.low)
    with pytest.raises(ValueError, match="a mean needs"):
        interquartile_mean_interval([])


def test_interquartile_means_are_scipys_trimmed_means() -> None:
    values = np.random.default_rng(0).normal(size=37)
    assert interquartile_mean(values) == pytest.approx(trim_mean(values, 0.25))


@pytest.mark.parametrize(("num_runs", "covers"), [(3, 0.75), (20, 0.93)])
def test_how_often_an_interval_of_interquartile_means_covers(num_runs: int, covers: float) -> None:
    rng, hits = np.random.default_rng(num_runs), 0
    for trial in range(600):
        interval = interquartile_mean_interval(
            [rng.normal(size=num_runs)], seed=trial, num_resamples=400
        )
        hits += interval.low <= 0 <= interval.high
    assert hits / 600 == pytest.approx(covers, abs=0.045)


def test_probability_of_improvement_by_hand() -> None:
    """Of the pairs of {1, 3} and {2, 3}: 1 below both, 3 above one and level with the other."""
    found = probability_of_improvement([[1.0, 3.0]], [[2.0, 3.0]])
    assert found.mean == pytest.approx((0 + 0 + 1 + 0.5) / 4)


def test_probability_of_improvement_is_the_mean_over_tasks() -> None:
    """First always above on one task, always below on the other, whatever the scales."""
    found = probability_of_improvement([[2.0, 3.0], [0.0]], [[1.0], [100.0, 200.0]])
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))


def test_probability_of_improvement_is_mann_and_whitneys_statistic() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.integers(0, 9, 11), rng.integers(0, 9, 7)
    statistic = mannwhitneyu(ours, theirs).statistic
    assert probability_of_improvement([ours], [theirs]).mean == pytest.approx(statistic / 77)


def test_one_run_each_has_a_probability_and_no_interval() -> None:
    found = probability_of_improvement([[2.0]], [[1.0, 3.0]])
    assert found.mean == 0.5
    assert math.isnan(found.low)


def test_pairs_are_of_one_task() -> None:
    with pytest.raises(ValueError, match="a pair is of one task"):
        probability_of_improvement([[1.0]], [[1.0], [2.0]])
    with pytest.raises(ValueError, match="at least one task"):
        probability_of_improvement([], [])


@given(scores, scores)
@settings(max_examples=40)
def test_both_probabilities_add_up_to_one(ours: list[float], theirs: list[float]) -> None:
    first = probability_of_improvement([ours], [theirs], num_resamples=20)
    second = probability_of_improvement([theirs], [ours], num_resamples=20)
    assert first.mean + second.mean == pytest.approx(1.0)


@given(scores, scores)
@settings(max_examples=40)
def test_only_the_order_of_scores_counts(ours: list[float], theirs: list[float]) -> None:
    """Any rising function of the scores leaves all of it as it was."""

    def risen(values: list[float]) -> list[float]:
        return [math.exp(value / 10) for value in values]

    here = probability_of_improvement([ours], [theirs], num_resamples=50)
    there = probability_of_improvement([risen(ours)], [risen(theirs)], num_resamples=50)
    assert (here.mean, here.low, here.high) == pytest.approx(
        (there.mean, there.low, there.high), nan_ok=True
    )


def test_an_interval_of_a_probability_covers_it() -> None:
    rng, hits = np.random.default_rng(1), 0
    truth = 0.5 * (1 + math.erf(0.5 / math.sqrt(2) / math.sqrt(2)))  # P(N(0.5, 1) > N(0, 1))
    for trial in range(300):
        found = probability_of_improvement(
            [rng.normal(0.5, 1, 15)], [rng.normal(0, 1, 15)], seed=trial, num_resamples=200
        )
        hits += found.low <= truth <= found.high
    assert hits / 300 == pytest.approx(0.93, abs=0.04)  # measured 0.94 over 2,500 trials


def fractions_of(profile: Line) -> list[float]:
    return [part.mean for _, part in profile]


def test_a_profile_by_hand() -> None:
    found = performance_profile([[1.0, 2.0, 3.0, 4.0]], [0.0, 1.0, 2.5, 4.0])
    assert fractions_of(found) == [1.0, 0.75, 0.5, 0.0]  # above, not at
    assert all(part.low <= part.mean <= part.high for _, part in found)


def test_a_profile_of_one_run_has_no_band() -> None:
    found = performance_profile([[1.0]], [0.0, 2.0])
    assert fractions_of(found) == [1.0, 0.0]
    assert all(math.isnan(part.low) for _, part in found)
    with pytest.raises(ValueError, match="a profile needs"):
        performance_profile([], [0.0])


@given(scores, st.lists(st.floats(-60, 60), min_size=2, max_size=6).map(sorted))
@settings(max_examples=40)
def test_profiles_fall_from_one_to_zero(values: list[float], places: list[float]) -> None:
    found = performance_profile([values], [-100.0, *places, 100.0], num_resamples=20)
    fractions = fractions_of(found)
    assert fractions[0] == 1.0
    assert fractions[-1] == 0.0
    assert (np.diff(fractions) <= 0).all()


def test_a_profile_s_area_is_the_mean_score() -> None:
    """The integral of P(score > t) over t, from below all scores, is their mean."""
    values = np.random.default_rng(2).uniform(0, 10, 25)
    places = np.linspace(0, 10, 20_001)
    found = performance_profile([values], places, num_resamples=2)
    assert np.trapezoid(fractions_of(found), places) == pytest.approx(values.mean(), abs=1e-3)


@pytest.mark.parametrize(("num_runs", "covers"), [(2, 0.50), (3, 0.75), (4, 0.87), (10, 0.94)])
def test_the_coverage_that_reports_warn_of(num_runs: int, covers: float) -> None:
    rng, hits = np.random.default_rng(num_runs), 0
    for trial in range(500):
        found = interquartile_mean_interval(
            [rng.normal(size=num_runs)], seed=trial, num_resamples=200
        )
        hits += found.low <= 0 <= found.high
    assert hits / 500 == pytest.approx(covers, abs=0.06)


def test_paired_differences_cover_with_three_seeds_in_each_of_two_contexts() -> None:
    """What a comparison says of differences: widened, so that few seeds are no excuse."""
    rng, hits = np.random.default_rng(3), 0
    for trial in range(500):
        differences = [rng.normal(0.0, 1.0, 3), rng.normal(0.0, 1.0, 3)]
        found = mean_interval(differences, seed=trial, num_resamples=300)
        hits += found.low <= 0 <= found.high
    assert 0.91 < hits / 500 < 0.985
