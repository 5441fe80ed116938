"""Patterns: which names they match, in which order, and which of them are refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxrl.protocol.patterns import abridged, expand, match

NAMES = st.lists(st.text("ab0_[]*?!", min_size=1, max_size=6), unique=True, max_size=8)


@given(names=NAMES, patterns=st.lists(st.text("ab0_[]*?!", min_size=1, max_size=6), max_size=5))
def test_matches_are_known_names_once_each_and_every_pattern_is_accounted_for(names, patterns):
    matched, idle = match(patterns, names)
    assert len(matched) == len(set(matched))
    assert set(matched) <= set(names)
    assert set(idle) <= set(patterns)
    for pattern in patterns:
        assert (pattern in idle) == (not match([pattern], names)[0])


@given(names=NAMES)
def test_every_name_matches_itself_alone_and_a_star_matches_all_in_order(names):
    for name in names:
        assert match([name], names) == ([name], [])
    if names and "*" not in names:
        assert match(["*"], names) == (names, [])


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("car_{0..2}", ["car_0", "car_1", "car_2"]),
        ("{8..10}", ["8", "9", "10"]),
        ("{08..10}", ["08", "09", "10"]),
        ("lane_{1..2}_car_{0..1}", [f"lane_{i}_car_{j}" for i in (1, 2) for j in (0, 1)]),
        ("bus_{a..c}", ["bus_{a..c}"]),
        ("bus", ["bus"]),
    ],
)
def test_a_range_in_braces_stands_for_each_of_its_numbers(pattern, names):
    assert expand(pattern) == names
    assert match([pattern], ["other", *reversed(names)]) == (names, [])


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("car_{0..}", ["car_0", "car_2", "car_10"]),
        ("car_{2..}", ["car_2", "car_10"]),
        ("car_{00..}", ["car_00", "car_10"]),
        ("car_{11..}", []),
        ("{0..}_left", ["3_left"]),
        ("bus_{0..}", ["bus_{0..}"]),
    ],
)
def test_braces_without_end_match_whoever_is_there(pattern, names):
    known = ["car_0", "car_00", "car_2", "car_10", "car_x", "car_", "3_left", "bus_{0..}", "bus_1"]
    assert match([pattern], known) == (names, [] if names else [pattern])


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("car_{3..1}", "'car_{3..1}' counts downwards; write {1..3}"),
        ("car_{0..999999}", "'car_{0..999999}' stands for more than 100,000 names"),
        ("{0..999}_{0..999}", "'{0..999}_{0..999}' stands for more than 100,000 names"),
        (
            "bus{0..}",
            "'bus{0..}' counts without end; say how many there may be at a time, such as bus{0..9}",
        ),
    ],
)
def test_braces_that_cannot_be_counted_out_are_refused(pattern, problem):
    with pytest.raises(ValueError, match=re.escape(problem)):
        expand(pattern)
    assert match([pattern], ["car_1"]) == ([], [pattern])


def test_every_name_that_braces_stand_for_has_to_be_there():
    assert match(["car_{1..99}"], ["car_1", "car_2"]) == (["car_1", "car_2"], ["car_3"])
    assert match(["car_{1..2}"], ["car_{1..2}", "car_1"]) == (["car_{1..2}"], []), "a name wins"


def test_rows_of_numbers_are_abridged():
    names = ["car_0", "car_1", "car_2", "bus", "car_3", "car_4", "van_8", "van_9", "van_10", "x_01"]
    assert abridged(names) == ["car_{0..2}", "bus", "car_3", "car_4", "van_{8..10}", "x_01"]


@given(st.lists(st.from_regex(r"(a|b_)?\d{0,2}", fullmatch=True), unique=True, max_size=12))
def test_abridged_names_stand_for_the_same_names(names):
    assert [name for text in abridged(names) for name in expand(text)] == names
