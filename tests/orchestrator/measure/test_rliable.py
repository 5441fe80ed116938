"""The statistics that compare algorithms give what was worked out by hand."""

import math

import numpy as np
import pytest
from scipy.stats import t

from muxrl.orchestrator.measure.rliable import (
    interquartile_mean,
    interquartile_mean_interval,
    performance_profile,
    probability_of_improvement,
)
from muxrl.orchestrator.measure.statistics import NO_VARIANCE, Line, Variance


def test_interquartile_mean_by_hand() -> None:
    assert interquartile_mean([100, 1, 2, 3, 4, 5, 6, -90]) == pytest.approx(3.5)  # of 2 to 5
    assert interquartile_mean([1, 2, 9]) == pytest.approx(4.0)  # too few values to leave any out
    assert interquartile_mean([5]) == 5.0


def test_interquartile_mean_of_three_runs_by_hand() -> None:
    """One of 27 resamples is three times the worst: 3.7 %, more than the 2.5 % beyond each end.

    The interval is widened by sqrt(3 / 2) and by t / z with two degrees of freedom.
    """
    estimate = interquartile_mean_interval([[0.0, 3.0, 9.0]])
    factor = math.sqrt(3 / 2) * t.ppf(0.975, 2) / 1.959964
    assert estimate.mean == 4.0
    assert (estimate.low, estimate.high) == pytest.approx((4 - 4 * factor, 4 + 5 * factor))


def test_luck_that_runs_share_widens_the_interval() -> None:
    scores = [1.0, 2.0, 3.0, 4.0, 5.0]
    estimate = interquartile_mean_interval([scores], Variance(4.0, 99.0))
    apart = interquartile_mean_interval([scores])
    assert estimate.high - estimate.low == pytest.approx(
        2 * math.hypot(1.98 * 2.0, (apart.high - apart.low) / 2), rel=0.1
    )
    alike = interquartile_mean_interval([[3.0] * 6], Variance(4.0, 99.0))
    assert (alike.low, alike.high) == pytest.approx((3 - 1.98 * 2, 3 + 1.98 * 2), rel=0.1)


def test_interquartile_mean_over_tasks_draws_runs_inside_their_task() -> None:
    """Half of the scores in any resample are of each task, and runs of a task are equal."""
    estimate = interquartile_mean_interval([[0.0] * 4, [10.0] * 4])
    assert (estimate.mean, estimate.low, estimate.high) == (5.0, 5.0, 5.0)


def test_a_few_equal_runs_have_no_interval_whatever_luck_they_share() -> None:
    for shared in (NO_VARIANCE, Variance(4.0, 99.0)):
        estimate = interquartile_mean_interval([[3.0] * 5], shared)
        assert estimate.mean == 3.0
        assert math.isnan(estimate.low)
        assert math.isnan(estimate.high)


def test_interquartile_mean_of_one_run_has_no_interval() -> None:
    estimate = interquartile_mean_interval([[3.0], [5.0]])
    assert estimate.mean == 4.0
    assert math.isnan(estimate.low)
    with pytest.raises(ValueError, match="a mean needs"):
        interquartile_mean_interval([])


def test_probability_of_improvement_by_hand() -> None:
    """Of {1, 3} against {2, 3}, 1 is below both, and 3 is above one and equal to the other."""
    found = probability_of_improvement([[1.0, 3.0]], [[2.0, 3.0]])
    assert found.mean == pytest.approx((0 + 0 + 1 + 0.5) / 4)


def test_probability_of_improvement_is_the_mean_over_tasks() -> None:
    """The first is always above on one task and always below on the other, whatever the scales."""
    found = probability_of_improvement([[2.0, 3.0], [0.0]], [[1.0], [100.0, 200.0]])
    assert found.mean == 0.5
    assert found.low < 0.2 < 0.8 < found.high


def test_a_few_runs_that_are_all_above_do_not_make_it_certain() -> None:
    found = probability_of_improvement([[4.0, 5.0, 6.0]], [[1.0, 2.0, 3.0]])
    assert (found.mean, found.low, found.high) == pytest.approx((1.0, 0.4485, 1.0), abs=1e-3)
    lucky = probability_of_improvement([[4.0, 5.0, 6.0]], [[1.0, 2.0, 3.0]], share=0.5)
    assert lucky.low < found.low


def test_the_ends_are_as_far_away_as_their_own_deviation_says() -> None:
    """The ends solve Newcombe's equation; half of one of 5 x 7 pairs corrects for continuity."""
    rng = np.random.default_rng(3)
    found = probability_of_improvement([rng.normal(1, 1, 5)], [rng.normal(0, 1, 7)])
    for end in (found.low, found.high):
        apart = 1 + 5 * ((1 - end) / (2 - end) + end / (1 + end))
        deviation = math.sqrt(end * (1 - end) * apart / 35)
        assert abs(end - found.mean) == pytest.approx(1.96 * deviation + 0.5 / 35, abs=2e-3)


def test_one_run_each_has_a_probability_and_no_interval() -> None:
    found = probability_of_improvement([[2.0]], [[1.0, 3.0]])
    assert found.mean == 0.5
    assert math.isnan(found.low)


def test_runs_are_paired_only_within_a_task() -> None:
    with pytest.raises(ValueError, match="a pair is of one task"):
        probability_of_improvement([[1.0]], [[1.0], [2.0]])
    with pytest.raises(ValueError, match="at least one task"):
        probability_of_improvement([], [])


def fractions_of(profile: Line) -> list[float]:
    return [part.mean for _, part in profile]


def test_a_profile_by_hand() -> None:
    found = performance_profile([[1.0, 2.0, 3.0, 4.0]], [0.0, 1.0, 2.5, 4.0])
    assert fractions_of(found) == [1.0, 0.75, 0.5, 0.0]  # above the threshold, not at it
    assert all(part.low <= part.mean <= part.high for _, part in found)


def test_a_profile_of_one_run_has_no_band() -> None:
    found = performance_profile([[1.0]], [0.0, 2.0])
    assert fractions_of(found) == [1.0, 0.0]
    assert all(math.isnan(part.low) for _, part in found)
    with pytest.raises(ValueError, match="a profile needs"):
        performance_profile([], [0.0])


def test_a_profile_s_area_is_the_mean_score() -> None:
    """The integral of P(score > t) over t, from below all scores, is their mean."""
    values = np.random.default_rng(2).uniform(0, 10, 25)
    places = np.linspace(0, 10, 20_001)
    found = performance_profile([values], places)
    assert np.trapezoid(fractions_of(found), places) == pytest.approx(values.mean(), abs=1e-3)
