"""Values from outside are checked once: those that fit pass unchanged, a mismatch is explained."""

from __future__ import annotations

import contextlib
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
import tree
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.some_spaces import SPACES

from muxrl.protocol.spaces import (
    Box,
    DictSpace,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    TupleSpace,
)
from muxrl.protocol.values import Mismatch, conform, number, sample


def assert_same(one: Any, other: Any) -> None:
    tree.assert_same_structure(one, other)
    for left, right in zip(tree.flatten(one), tree.flatten(other), strict=True):
        assert type(left) is type(right)
        np.testing.assert_array_equal(left, right)


def plain(value: Any) -> Any:
    """Returns a value as it is after a way through JSON."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


@given(SPACES, st.integers(0, 2**16))
def test_a_sample_of_a_space_and_its_plain_form_conform_to_the_space(
    space: Space, seed: int
) -> None:
    value = sample(space, np.random.default_rng(seed))
    assert_same(conform(space, value), value)
    assert_same(conform(space, plain(value)), value)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "uint64", "int64", "bool"])
def test_integers_without_bounds_are_drawn_from_all_of_their_dtype(dtype: str) -> None:
    drawn = sample(Box((4_000,), dtype), np.random.default_rng(0))
    assert drawn.dtype == dtype
    first, last = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    where = (drawn.astype(float) - first) / (float(last) - first)
    assert abs(where.mean() - 0.5) < 0.05
    assert where.min() < 0.02
    assert where.max() > 0.98


@given(SPACES, st.integers(0, 2**16))
def test_any_value_conforms_or_is_a_mismatch(space: Space, seed: int) -> None:
    other = [None, "a", b"a", [], {}, 2**70, -1, 1.5, True, [[1], 2], ["a"], [None], math.nan,
             {1: 2}, np.array(["x"]), np.zeros((2, 2)), np.zeros(3, np.int8), [[[]]],
             np.uint64(2**63), [2**64], [math.inf], [1e300],
             [[[[np.zeros(1)]]]], [np.zeros(2), [[np.zeros(2)]]]]  # fmt: skip
    for value in other:
        with contextlib.suppress(Mismatch):
            conform(space, value)


def test_an_array_that_fits_is_not_copied() -> None:
    array = np.zeros(3, np.float32)
    assert conform(Box((3,)), array) is array


BOX = Box((2,))


MISMATCHES: list[tuple[Space, Any, str, str]] = [
    (BOX, np.zeros(3, np.float32), "Box(2,) float32", "shape (3,)"),
    (BOX, [1, 2, 3], "Box(2,) float32", "shape (3,)"),
    (BOX, 1.0, "Box(2,) float32", "float '1.0'"),
    (BOX, np.zeros(2, np.complex64), "dtype float32", "dtype complex64"),
    (BOX, np.full(2, 1e300), "finite numbers", "infinity at index [0]"),
    (Box((2,), "int64"), [math.nan, 0], "finite numbers", "NaN at index [0]"),
    (Box((1,), "bool"), [2], "dtype bool", "numbers beyond 0..1"),
    (BOX, np.array(["a", "b"]), "dtype float32", "dtype <U1"),
    (BOX, ["a", "b"], "Box(2,) float32", "str 'a' at index [0]"),
    (BOX, [1, 10**400], "Box(2,) float32", "an integer beyond 64 bits at index [1]"),
    (Box((2,), "int64"), [1, 2**70], "Box(2,) int64", "an integer beyond 64 bits at index [1]"),
    (Box((2, 2)), [[1, 2], [None, "x"]], "Box(2, 2) float32", "null at index [1, 0]"),
    (Box((2, 2)), [[1, 2], [3, {"x": 1}]], "Box(2, 2) float32", "at index [1, 1]"),
    (MultiDiscrete((2, 3)), [0, "x"], "MultiDiscrete(2, 3)", "str 'x' at index [1]"),
    (BOX, None, "Box(2,) float32", "null"),
    (BOX, {"x": 1}, "Box(2,) float32", "dict"),
    (BOX, [[1], [2, 3]], "Box(2,) float32", "shape (1,) at index [0]"),
    (Box((2, 1)), [{1}, {2}], "Box(2, 1) float32", "set '{1}' at index [0]"),
    (Box((2, 2)), [np.zeros(2), np.zeros(3)], "Box(2, 2) float32", "shape (3,) at index [1]"),
    (BOX, [1, None], "Box(2,) float32", "null at index [1]"),
    (BOX, np.array([0, math.nan], np.float32), "finite numbers", "NaN at index [1]"),
    (BOX, np.array([math.inf, 0], np.float32), "finite numbers", "infinity at index [0]"),
    (BOX, np.array([math.inf, -math.inf], np.float32), "finite numbers", "infinity at index [0]"),
    (Box((2, 2), "uint8"), [[1, 2], [3, 256]], "dtype uint8", "numbers beyond 0..255"),
    (Box((1,), "uint8"), [-1], "dtype uint8", "numbers beyond 0..255"),
    (Box((1,), "int64"), [0.5], "dtype int64", "fractional numbers"),
    (Box((1,), "uint8"), np.full(1, 256), "dtype uint8", "numbers beyond 0..255"),
    (Discrete(3), 3, "Discrete(3)", "3"),
    (Discrete(3, start=1), 0, "Discrete(3, start=1)", "0"),
    (Discrete(3), -1, "Discrete(3)", "-1"),
    (Discrete(3), True, "Discrete(3)", "bool 'True'"),
    (Discrete(3), 1.5, "Discrete(3)", "float '1.5'"),
    (Discrete(3), math.nan, "Discrete(3)", "float 'nan'"),
    (Discrete(3), "1", "Discrete(3)", "str '1'"),
    (Discrete(3), np.array([1, 1]), "Discrete(3)", "an array of shape (2,) and dtype int64"),
    (Discrete(3), np.float32(0.5), "Discrete(3)", "float32 '0.5'"),
    (MultiDiscrete((2, 3)), [0, 3], "MultiDiscrete(2, 3)", "[0, 3]"),
    (MultiDiscrete((2, 3)), [0], "MultiDiscrete(2, 3)", "shape (1,)"),
    (MultiDiscrete((2, 3)), np.full(2, 0.5), "dtype int64", "fractional numbers"),
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


class Tensor:
    """A stand-in for tensors of torch and JAX: no array, but numpy can make one of it."""

    def __init__(self, value: Any, problem: str = "") -> None:
        self._value, self._problem = value, problem

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        if self._problem:
            raise TypeError(self._problem)
        return np.array(self._value, *args, **kwargs)


@pytest.mark.parametrize(
    ("space", "value", "meant"),
    [
        *((BOX, np.ones(2, dtype), [1, 1]) for dtype in ("float16", "int8", "uint16", "bool")),
        *((Box((0,), dtype), [], []) for dtype in ("float32", "int32")),
        (Box((0,), "int32"), np.zeros(0), []),
        (BOX, np.array([0, 1]), [0, 1]),
        (BOX, np.array([0.5, 1.5]), [0.5, 1.5]),
        (BOX, np.array([1, np.float32(0.5)], object), [1, 0.5]),
        (BOX, Tensor([1, 2]), [1, 2]),
        (BOX, [Tensor(1), Tensor(2)], [1, 2]),
        (BOX, [True, 2**70], [1, 2.0**70]),
        (Box((2, 2)), [Tensor([1, 2]), Tensor([3, 4])], [[1, 2], [3, 4]]),
        (Box((1,)), 0.5, [0.5]),
        (Box((1,)), [2**70], [2.0**70]),
        (Box((1, 1)), [Tensor(0.5)], [[0.5]]),
        (Box(()), [0.5], 0.5),
        (Box((2,), "uint8"), np.array([0.0, 255.0]), [0, 255]),
        (Box((2,), "uint64"), [True, False], [1, 0]),
        (Discrete(3), 2.0, 2),
        (Discrete(3), [Tensor([2])], 2),
        (MultiDiscrete((2, 3)), [1.0, 2.0], [1, 2]),
        (MultiDiscrete((3,)), 2.0, [2]),
        (DictSpace({"0": Discrete(2)}), {0: 1}, {"0": 1}),
    ],
)
def test_a_value_of_another_type_with_the_same_meaning_is_taken(
    space: Space, value: Any, meant: Any
) -> None:
    came = conform(space, value)
    assert plain(came) == meant
    if isinstance(space, Box):
        assert (came.dtype, came.shape) == (space.dtype, space.shape)


def test_a_tensor_that_cannot_become_an_array_says_why() -> None:
    with pytest.raises(Mismatch, match=r"expected Box.*got Tensor: it is on a GPU"):
        conform(BOX, Tensor([1, 2], "it is on a GPU"))


@pytest.mark.parametrize("value", [1, 1.0, True, np.bool_(True), np.array([1.0]), [[Tensor(1)]]])
def test_a_number_within_arrays_or_lists_of_one_is_a_number(value: Any) -> None:
    assert (one := number(value)) == 1.0
    assert type(one) is float


@pytest.mark.parametrize("value", [None, "1", math.nan, [1, 2], {}, 10**400, Tensor(1, "no")])
def test_a_value_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(Mismatch, match="expected a finite number, got"):
        number(value)


def test_large_finite_numbers_are_no_infinity() -> None:
    top = float(np.finfo(np.float32).max)
    with np.errstate(over="ignore"):
        assert conform(BOX, np.array([top, top], np.float32)).tolist() == [top, top]


BIG = 2_000_000


@pytest.mark.parametrize(
    ("space", "value", "got"),
    [
        (Box((3,)), [[0]] * BIG, f"a list of {BIG}"),
        (Box((3,)), [0.0] * BIG, rf"shape \({BIG},\)"),
        (Box((2, 2)), [[0.0, 1.0], [0.0] * BIG], rf"shape \({BIG},\) at index \[1\]"),
        (MultiDiscrete((2, 3)), [0] * BIG, rf"shape \({BIG},\)"),
        (Box((3,)), [0.0, "x" * BIG, 0.0], rf"str {'x' * 80!r} at index \[1\]"),
        (Box((300,)), ["x" * BIG] + [0.0] * 299, rf"str {'x' * 80!r} at index \[0\]"),
        (Box((2, 2)), [[0.0, 1.0], "ab"], r"str 'ab' at index \[1\]"),
        (Box((2, 2)), [[0.0, 1.0], b"ab"], r"bytes .* at index \[1\]"),
        (Box((2, 2)), [[0.0, 1.0], {1: 0, 2: 0}], r"dict with keys .* at index \[1\]"),
        (DictSpace({"x": BOX}), dict.fromkeys(map(str, range(BIG // 10)), 0), "and 199980 more"),
    ],
)
def test_a_value_that_cannot_fit_is_not_made_an_array(space: Space, value: Any, got: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Mismatch, match=got):
            conform(space, value)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
