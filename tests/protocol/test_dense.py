"""What a client reads of an observation is what the server's networks read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from muxrl.protocol.dense import flat_reader
from muxrl.protocol.spaces import (
    Box,
    DictSpace,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    TupleSpace,
)
from muxrl.protocol.values import conform
from muxrl.servers.agents.spaces import module_observation_reader, to_gymnasium

SPACES: list[Space] = [
    Box((3,)),
    Box((2, 2), "uint8", 0, 9),
    Box((), "float64", 0, 1),
    Discrete(4, start=-1),
    MultiDiscrete((2, 3)),
    MultiBinary(3),
    TupleSpace((Discrete(2), Box((2,)))),
    DictSpace({"z": Box((2,)), "a": Discrete(3, start=5), "m": MultiDiscrete((4, 2))}),
    DictSpace({"b": TupleSpace((MultiBinary(2), Box((1, 2)))), "a": Box((1,))}),
]


def plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_an_observation_is_flattened_as_the_server_does(space: Space) -> None:
    drawn = to_gymnasium(space)
    drawn.seed(0)
    for _ in range(5):
        value = conform(space, plain(drawn.sample()))
        flat = flat_reader(space)(value)
        assert flat.dtype == np.float32
        np.testing.assert_array_equal(flat, module_observation_reader(space)(value).ravel())
