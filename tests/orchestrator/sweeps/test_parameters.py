"""Grids are complete; draws stay within their bounds and are repeatable."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxrl.orchestrator.sweeps.parameters import draw, find_problems, settings
from muxrl.orchestrator.sweeps.schema import ParameterConfig as P

KEY = "servers.a.settings.lr"


def test_each_point_of_all_grids_has_the_given_number_of_draws():
    made = list(settings({"a": P(grid=[1, 2]), "b": P(grid=["x", "y"])}, 5, 0))
    assert made == [{"a": a, "b": b} for a in (1, 2) for b in ("x", "y")]
    drawn = list(settings({"a": P(grid=[1, 2]), "b": P(uniform=[0, 1])}, 3, 0))
    assert [point["a"] for point in drawn] == [1, 1, 1, 2, 2, 2]
    # Each point of the grid has the same draws, so that points are compared and not luck.
    assert [point["b"] for point in drawn[:3]] == [point["b"] for point in drawn[3:]]
    assert len({point["b"] for point in drawn}) == 3
    assert list(settings({}, 4, 0)) == [{}]


def test_a_draw_depends_on_key_sample_and_seed_alone():
    one = P(uniform=[0.0, 1.0])
    alone = [p["a"] for p in settings({"a": one}, 4, 7)]
    beside = [p["a"] for p in settings({"b": one, "a": one, "c": P(choice=[1, 2])}, 4, 7)]
    assert alone == beside
    values = {draw(*args) for args in [("a", one, 0, 7), ("b", one, 0, 7), ("a", one, 1, 7)]}
    assert len(values | {draw("a", one, 0, 8)}) == 4


BOUNDS = st.tuples(st.floats(1e-6, 1e3), st.floats(1e-3, 1e3)).map(lambda b: [b[0], b[0] + b[1]])


@given(BOUNDS, st.integers(0, 50))
def test_draws_stay_within_their_bounds(bounds, sample):
    for kind in ("uniform", "loguniform"):
        assert bounds[0] <= draw(KEY, P(**{kind: bounds}), sample, 0) <= bounds[1] * (1 + 1e-12)


@given(st.integers(-9, 9), st.integers(1, 9), st.integers(0, 50))
def test_whole_numbers_leave_the_upper_bound_out(low, width, sample):
    value = draw(KEY, P(randint=[low, low + width]), sample, 0)
    assert low <= value < low + width
    assert isinstance(value, int)


@pytest.mark.parametrize(
    ("bounds", "values"),
    [
        ([0.1, 0.3, 0.1], [0.1, 0.2, 0.3]),
        ([0.0, 0.7, 0.1], [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]),
        ([0.1, 0.3, 0.2], [0.2]),
        ([1e-13, 3e-13, 1e-13], [1e-13, 2e-13, 3e-13]),
        ([-0.3, 0.3, 0.3], [-0.3, 0.0, 0.3]),
        ([0.15, 0.45, 0.1], [0.2, 0.3, 0.4]),
        ([0.12, 0.44, 0.1], [0.2, 0.3, 0.4]),
        ([0.05, 0.95, 0.1], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]),
    ],
)
def test_quantised_draws_are_each_multiple_once(bounds, values):
    parameter = P(quniform=bounds)
    assert list(find_problems(KEY, parameter)) == []
    assert sorted({draw(KEY, parameter, i, 0) for i in range(300)}) == values


def test_draws_cover_their_whole_range():
    assert {draw(KEY, P(choice=["a", "b", "c"]), i, 0) for i in range(50)} == {"a", "b", "c"}
    assert {draw(KEY, P(randint=[0, 3]), i, 0) for i in range(50)} == {0, 1, 2}
    logs = [math.log10(draw(KEY, P(loguniform=[1e-5, 1e-1]), i, 0)) for i in range(400)]
    assert abs(sum(logs) / len(logs) + 3) < 0.2  # the middle of -5 and -1


@pytest.mark.parametrize(
    ("key", "parameter", "story"),
    [
        (KEY, P(), f"parameters.{KEY}: needs one of grid, choice"),
        (KEY, P(grid=[1], uniform=[0, 1]), "has grid and uniform; it can have only one of them"),
        (KEY, P(grid=[]), "grid: has no values"),
        (KEY, P(uniform=[1]), "uniform: must be [low, high], got [1]"),
        (KEY, P(uniform=[1, 0]), "low must be below high"),
        (KEY, P(uniform=[0, math.inf]), "low must be below high"),
        (KEY, P(loguniform=[0, 1]), "low must be above 0, got 0"),
        (KEY, P(quniform=[0, 1]), "must be [low, high, step]"),
        (KEY, P(quniform=[0, 1, 2]), "the step must be above 0 and fit"),
        ("seed", P(grid=[1, 2]), "use the sweep's `seeds`"),
    ],
)
def test_mistakes_in_parameters_are_named(key, parameter, story):
    assert any(story in problem for problem in find_problems(key, parameter))
