"""Hypothesis strategies for spaces of every kind that the protocol carries."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from muxrl.protocol.spaces import Box, DictSpace, Discrete, MultiBinary, MultiDiscrete, TupleSpace

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
