"""Networks read an observation, at a client or a server, as Gymnasium flattens it."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces.utils import flatten, flatten_space
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.some_spaces import SPACES

from muxrl.protocol.dense import flat_reader
from muxrl.protocol.rows import stack
from muxrl.protocol.spaces import Box, Space, typed_bounds
from muxrl.protocol.values import conform, sample
from muxrl.servers.agents.spaces import module_observation_reader, module_observation_space
from muxrl.servers.gymnasium_spaces import to_gymnasium

MORE = st.sampled_from(
    [
        Box((2,), "float32", [0.1, None], [None, 2.5]),
        Box((2, 2, 3), "float64", -0.3, 0.1),
        Box((4, 4, 1), "uint8"),
        Box((2,), "int64"),
        Box((3,), "bool", 0, 1),
    ]
)


@given(st.one_of(SPACES, MORE), st.integers(0, 2**16))
def test_an_observation_is_read_as_gymnasium_flattens_it(space: Space, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = [conform(space, sample(space, rng)) for _ in range(6)]
    theirs, read = to_gymnasium(space), module_observation_reader(space)
    box = module_observation_space(space)
    flat: Any = flatten_space(theirs)
    for bound, expected in zip(typed_bounds(box), (flat.low, flat.high), strict=True):
        np.testing.assert_array_equal(bound.ravel(), expected.astype(np.float32))
    expected = np.stack([flatten(theirs, value) for value in values]).astype(np.float32)
    seen = np.stack([read(value) for value in values])
    assert (seen.dtype, seen.shape[1:]) == (np.float32, box.shape)
    np.testing.assert_array_equal(seen.reshape(6, -1), expected)
    np.testing.assert_array_equal(read(stack(space, values, (2, 3))).reshape(6, -1), expected)
    np.testing.assert_array_equal(flat_reader(space)(values[0]), expected[0])
