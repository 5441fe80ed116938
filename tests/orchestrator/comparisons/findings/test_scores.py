"""Areas, thresholds and bands of learning curves are as computed by hand."""

import math

import numpy as np
import pytest

from muxrl.orchestrator.comparisons.findings.scores import Curve, band, common_variance
from muxrl.orchestrator.measure.statistics import NO_VARIANCE
from muxrl.orchestrator.measure.subjects import Measured


def curve(*points: tuple[float, float]) -> Curve:
    steps, returns = np.array(points, dtype=np.float64).T
    return Curve(steps, steps / 10, returns)


def played(learned: float = 0.0, first_seed: int = 1) -> Measured:
    return Measured(1, first_seed, {"": np.array([learned, learned + 1.0])})


def test_the_area_is_the_mean_height() -> None:
    """The curve rises from 0 to 4 in 10 steps and is flat for 10 more: (2 * 10 + 4 * 10) / 20."""
    assert curve((0, 0), (10, 4), (20, 4)).area(0, 20) == pytest.approx(3.0)


def test_an_area_may_begin_and_end_between_evaluations() -> None:
    assert curve((0, 0), (10, 10)).area(2, 6) == pytest.approx(4.0)


def test_a_curve_that_does_not_reach_has_no_area() -> None:
    assert math.isnan(curve((0, 0), (10, 4)).area(0, 11))
    assert math.isnan(curve((5, 0), (10, 4)).area(0, 10))
    assert math.isnan(curve((10, 4)).area(10, 10))


def test_a_threshold_is_reached_at_an_evaluation_and_not_between_two() -> None:
    found = curve((0, 0), (10, 4), (20, 2), (30, 5))
    # Not at 7.5 env steps, where the line between the evaluations crosses.
    assert found.first_at(3.0) == 1
    assert found.first_at(4.0) == 1
    assert found.first_at(4.5) == 3
    assert found.first_at(6.0) is None


def test_a_band_covers_only_the_steps_that_all_runs_have() -> None:
    curves = [curve((0, 0), (10, 10), (20, 20)), curve((4, 4), (10, 12), (18, 20))]
    drawn = band(curves, "env_steps", NO_VARIANCE)
    assert [place for place, _ in drawn] == [4.0, 10.0, 18.0]
    assert [estimate.mean for _, estimate in drawn] == pytest.approx([4.0, 11.0, 19.0])


def test_there_is_no_band_of_one_evaluation_or_of_unknown_times() -> None:
    assert not band([], "env_steps", NO_VARIANCE)
    assert not band([curve((0, 0), (10, 1)), curve((10, 1))], "env_steps", NO_VARIANCE)
    unknown = Curve(np.array([0.0, 1.0]), np.full(2, math.nan), np.array([0.0, 1.0]))
    assert not band([unknown], "time_s", NO_VARIANCE)
    assert band([unknown], "env_steps", NO_VARIANCE)


def test_the_variance_of_episodes_counts_if_runs_share_them() -> None:
    alike = [played(), played(1.0)]
    # The variance of 0.5 and 1.5, the means of two episodes.
    assert common_variance(alike).value == pytest.approx(0.25)
    assert common_variance([played(), played(first_seed=2)]) == NO_VARIANCE
    assert common_variance(alike, alike).value == 0.0, (
        "pairs have it in common, and their difference none"
    )
    others = [played(first_seed=2), played(1.0, first_seed=2)]
    assert common_variance(alike, others).value == pytest.approx(0.5)
