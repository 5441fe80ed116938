"""One check for all that comes from outside: what fits passes unchanged, what does not is told."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from gymnasium import spaces as gym
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from muxrl.protocol.spaces import (
    Box,
    DictSpace,
    Discrete,
    Mismatch,
    MultiBinary,
    MultiDiscrete,
    Space,
    TupleSpace,
    bounds,
    conform,
    from_gymnasium,
    sample,
)
from muxrl.servers.spaces import to_gymnasium

FLOATS = st.sampled_from(["float16", "float32", "float64"])
INTEGERS = st.sampled_from([f"{k}{b}" for k in ("int", "uint") for b in (8, 16, 32, 64)])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=3)
BOUNDS = st.sampled_from([(None, None), (-1.0, 1.0), (None, 2.0), (-2.0, None), (0.0, 0.0)])
BOXES = st.one_of(
    st.builds(lambda s, d, b: Box(s, d, *b), SHAPES, FLOATS, BOUNDS),
    st.builds(
        lambda s, d, high: Box(s, d, 0.0, high), SHAPES, INTEGERS, st.sampled_from([1.0, 9.0])
    ),
)
LEAVES = st.one_of(
    BOXES,
    st.builds(Discrete, st.integers(1, 9), st.integers(-3, 3)),
    st.builds(MultiDiscrete, st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)),
    st.builds(MultiBinary, st.integers(1, 4)),
)
SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(
            DictSpace, st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=2)
        ),
        st.builds(TupleSpace, st.lists(inner, min_size=1, max_size=2).map(tuple)),
    ),
    max_leaves=4,
)


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert type(one) is type(other)
        np.testing.assert_array_equal(one, other)


def plain(value: Any) -> Any:
    """Returns a value as it is after JSON."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


@given(SPACES, st.integers(0, 2**16))
def test_a_sample_conforms_and_stays_what_it_is(space: Space, seed: int) -> None:
    value = sample(space, np.random.default_rng(seed))
    assert_same(conform(space, value), value)


@given(SPACES, st.integers(0, 2**16))
def test_so_does_its_plain_form(space: Space, seed: int) -> None:
    value = sample(space, np.random.default_rng(seed))
    assert_same(conform(space, plain(value)), value)


@given(SPACES)
def test_a_space_travels_as_json(space: Space) -> None:
    assert msgspec.json.decode(msgspec.json.encode(space), type=Space) == space


@given(SPACES, st.integers(0, 2**16))
def test_gymnasium_agrees_with_our_samples(space: Space, seed: int) -> None:
    value = sample(space, np.random.default_rng(seed))
    assert to_gymnasium(space).contains(value)


@given(SPACES)
def test_to_gymnasium_and_back(space: Space) -> None:
    theirs = to_gymnasium(space)
    assert to_gymnasium(from_gymnasium(theirs)) == theirs


@given(SPACES, st.integers(0, 2**16))
def test_any_value_conforms_or_is_a_mismatch(space: Space, seed: int) -> None:
    other = [None, "a", b"a", [], {}, 2**70, -1, 1.5, True, [[1], 2], ["a"], [None], math.nan,
             {1: 2}, np.array(["x"]), np.zeros((2, 2)), np.zeros(3, np.int8), [[[]]],
             np.uint64(2**63), [2**64], [math.inf], [1e300]]  # fmt: skip
    for value in other:
        with contextlib.suppress(Mismatch):
            conform(space, value)


def test_truth_values_are_integers_of_every_size() -> None:
    assert conform(Box((2,), "uint64"), [True, False]).tolist() == [1, 0]


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_nothing_at_all_fits_where_nothing_is_expected(dtype: str) -> None:
    for nothing in ([], np.zeros(0, dtype)):
        assert conform(Box((0,), dtype), nothing).dtype == dtype


def test_no_copy_of_what_fits() -> None:
    array = np.zeros(3, np.float32)
    assert conform(Box((3,)), array) is array


BOX = Box((2,))
MISMATCHES: list[tuple[Space, Any, str, str]] = [
    (BOX, np.zeros(3, np.float32), "Box(2,) float32", "shape (3,)"),
    (BOX, [1, 2, 3], "Box(2,) float32", "shape (3,)"),
    (BOX, 1.0, "Box(2,) float32", "shape ()"),
    (BOX, np.zeros(2, np.float64), "dtype float32", "dtype float64"),
    (BOX, np.zeros(2, np.int32), "dtype float32", "dtype int32"),
    (BOX, np.array(["a", "b"]), "dtype float32", "dtype <U1"),
    (BOX, ["a", "b"], "Box(2,) float32", "a list of 2"),
    (BOX, None, "Box(2,) float32", "NoneType 'None'"),
    (BOX, {"x": 1}, "Box(2,) float32", "dict"),
    (BOX, [[1], [2, 3]], "Box(2,) float32", "a ragged list"),
    (BOX, [1, None], "Box(2,) float32", "a list of 2"),
    (BOX, np.array([0, math.nan], np.float32), "finite numbers", "NaN at index [1]"),
    (BOX, np.array([math.inf, 0], np.float32), "finite numbers", "infinity at index [0]"),
    (BOX, np.array([math.inf, -math.inf], np.float32), "finite numbers", "infinity at index [0]"),
    (Box((2, 2), "uint8"), [[1, 2], [3, 256]], "dtype uint8", "numbers beyond 0..255"),
    (Box((1,), "uint8"), [-1], "dtype uint8", "numbers beyond 0..255"),
    (Box((1,), "int64"), [0.5], "dtype int64", "fractional numbers"),
    (Box((1,), "uint8"), np.zeros(1, np.int64), "dtype uint8", "dtype int64"),
    (Discrete(3), 3, "Discrete(3)", "3"),
    (Discrete(3, start=1), 0, "Discrete(3, start=1)", "0"),
    (Discrete(3), -1, "Discrete(3)", "-1"),
    (Discrete(3), True, "Discrete(3)", "bool 'True'"),
    (Discrete(3), 1.0, "Discrete(3)", "float '1.0'"),
    (Discrete(3), "1", "Discrete(3)", "str '1'"),
    (Discrete(3), np.array([1]), "Discrete(3)", "shape (1,) dtype int64"),
    (Discrete(3), np.float32(1), "Discrete(3)", "shape () dtype float32"),
    (MultiDiscrete((2, 3)), [0, 3], "MultiDiscrete(2, 3)", "[0, 3]"),
    (MultiDiscrete((2, 3)), [0], "MultiDiscrete(2, 3)", "shape (1,)"),
    (MultiDiscrete((2, 3)), np.zeros(2), "MultiDiscrete(2, 3)", "dtype float64"),
    (MultiBinary(2), [0, 2], "MultiBinary(2)", "[0, 2]"),
    (MultiBinary(2), [0, -1], "MultiBinary(2)", "[0, -1]"),
    (DictSpace({"x": BOX}), [1, 2], "Dict(x: Box(2,) float32)", "a list of 2"),
    (DictSpace({"x": BOX}), {"y": [1, 2]}, "keys ['x']", "keys ['y']"),
    (DictSpace({"x": BOX}), {"x": [1]}, "x: Box(2,) float32", "shape (1,)"),
    (TupleSpace((BOX, Discrete(2))), [[1, 2]], "2 items", "a list of 1"),
    (TupleSpace((BOX, Discrete(2))), [[1, 2], 2], "[1]: Discrete(2)", "2"),
    (DictSpace({"x": TupleSpace((BOX,))}), {"x": [[1]]}, "x[0]: Box(2,) float32", "shape (1,)"),
]  # fmt: skip


@pytest.mark.parametrize(("space", "value", "expected", "got"), MISMATCHES)
def test_a_mismatch_says_what_was_expected_and_what_came(
    space: Space, value: Any, expected: str, got: str
) -> None:
    with pytest.raises(Mismatch) as refusal:
        conform(space, value)
    assert refusal.value.expected == expected
    assert got in refusal.value.got
    assert f"expected {expected}, got " in str(refusal.value)


def test_float64_for_float32_comes_with_the_cure() -> None:
    with pytest.raises(Mismatch, match=r"cast it with .astype\(numpy.float32\)"):
        conform(BOX, np.zeros(2))


@pytest.mark.parametrize("dtype", ["float16", "int8", "uint16", "bool"])
def test_what_casts_safely_is_cast(dtype: str) -> None:
    value = conform(BOX, np.ones(2, dtype))
    assert value.dtype == np.float32
    assert value.tolist() == [1, 1]


def test_large_finite_numbers_are_no_infinity() -> None:
    top = float(np.finfo(np.float32).max)
    with np.errstate(over="ignore"):
        assert conform(BOX, np.array([top, top], np.float32)).tolist() == [top, top]


@given(BOXES)
def test_bounds_have_the_shape_of_the_space(space: Box) -> None:
    low, high = bounds(space)
    assert low.shape == high.shape == space.shape
    assert (low <= high).all()


@pytest.mark.parametrize(
    "space",
    [
        gym.Box(-np.inf, np.inf, (3,), np.float32),
        gym.Box(np.array([-1, -np.inf], np.float32), np.array([np.inf, 2], np.float32)),
        gym.Box(0, 255, (4, 4, 3), np.uint8),
        gym.Box(-1, 1, (), np.float64),
        gym.Box(0, 1, (2,), np.bool_),
        gym.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64),
        gym.Box(0, np.iinfo(np.uint64).max, (2,), np.uint64),
        gym.Discrete(4),
        gym.Discrete(4, start=-2),
        gym.MultiDiscrete([2, 3]),
        gym.MultiBinary(3),
        gym.Dict({"b": gym.Discrete(2), "a": gym.Box(0, 1, (2,), np.float32)}),
        gym.Tuple((gym.Discrete(2), gym.MultiBinary(1))),
    ],
    ids=str,
)
def test_from_gymnasium_and_back(space: gym.Space[Any]) -> None:
    assert to_gymnasium(from_gymnasium(space)) == space


@pytest.mark.parametrize(
    "space",
    [
        gym.Text(3),
        gym.Sequence(gym.Discrete(2)),
        gym.MultiDiscrete([[2, 2], [2, 2]]),
        gym.MultiDiscrete([2, 2], start=[1, 0]),
        gym.MultiBinary([2, 2]),
        gym.Dict({"inner": gym.Text(3)}),
    ],
)
def test_spaces_that_cannot_travel(space: gym.Space[Any]) -> None:
    with pytest.raises(TypeError, match="cannot travel: known are Box, Discrete"):
        from_gymnasium(space)
