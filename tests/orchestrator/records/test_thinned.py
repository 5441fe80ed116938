"""Thinned curves have a bounded number of points."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from muxrl.orchestrator.records.thinned import Thinned


@given(size=st.integers(0, 400), most=st.sampled_from([2, 8, 32]))
def test_a_thinned_curve_has_points_that_were_added_the_first_and_the_newest_too(
    size: int, most: int
) -> None:
    added = [(x, 10 * x) for x in range(size)]
    curve = Thinned(most=most)
    for point in added:
        curve.add(point)
    points = list(curve.points)
    assert len(points) <= most + 1
    assert points == sorted(set(points) & set(added))
    if size <= most:
        assert points == added
    else:
        assert points[0] == added[0]
        assert points[-1] == added[-1]
        assert len(points) > most / 2
        distances = {b[0] - a[0] for a, b in pairwise(points[:-1])}
        assert len(distances) <= 1, "at equal distances, but for the newest"


@given(size=st.integers(1, 400), most=st.sampled_from([2, 8, 32]))
def test_merged_points_lose_no_values(size: int, most: int) -> None:
    curve = Thinned(lambda a, b: (a[0], b[1], a[2] + b[2]), most)
    for x in range(size):
        curve.add((x, x + 1, 1))
    points = list(curve.points)
    assert len(points) <= most
    assert points[0][0] == 0
    assert points[-1][1] == size
    assert all(a[1] == b[0] for a, b in pairwise(points)), "no gap"
    assert all(point[2] == point[1] - point[0] for point in points)
