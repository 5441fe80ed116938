"""A state read from its file equals the one written, with the same types and to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from muxrl.servers.checkpoints.state_file import read_state, write_state

_NUMBERS = st.integers(-(2**130), 2**130) | st.floats(allow_nan=False)
_LEAVES = st.none() | st.booleans() | _NUMBERS | st.text(max_size=5)
_ARRAYS = arrays_of.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_]),
    arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
_TREES = st.recursive(
    _LEAVES | _ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(_TREES)
def test_a_state_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, state: Any) -> None:
    path = tmp_path_factory.mktemp("state") / "state.npz"
    write_state(path, state)
    assert_alike(read_state(path), state)


def assert_alike(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_alike(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_alike(a, b)
    else:
        assert one == other


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({1: 2}, "not all strings"),
        (np.array([None]), "dtype object"),
        ({"a": {3, 4}}, "a set cannot be saved"),
    ],
)
def test_a_value_that_would_need_a_pickle_is_refused(
    tmp_path: Path, state: Any, reason: str
) -> None:
    with pytest.raises(TypeError, match=reason):
        write_state(tmp_path / "state.npz", state)
    assert not (tmp_path / "state.npz").exists()


def test_a_pickle_in_its_place_is_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "state.npy", np.array([print]), allow_pickle=True)
    with pytest.raises(ValueError, match=r"state\.npy' is broken"):
        read_state(tmp_path / "state.npy")
