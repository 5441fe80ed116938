"""A trainer's state is the same after a way through a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from muxrl.servers.checkpoints.state_file import read_state, write_state
from muxrl.servers.trainers.plain_state import find_not_finite, from_plain, to_plain


def through_a_file(value: Any, folder: Path) -> Any:
    write_state(folder / "state.npz", to_plain(value))
    return from_plain(read_state(folder / "state.npz"))


def test_all_that_a_state_may_hold(tmp_path: Path) -> None:
    state = {
        "none": None, "flag": True, "whole": 2**70, "real": 0.1, "text": "ü", "bytes": b"\0\1",
        "pair": (1, [2.0, "x"]), 7: {"by number": np.arange(3, dtype=np.int8)},
        (1, 2): "by pair", "generator": np.random.default_rng(3).bit_generator.state,
    }  # fmt: skip
    found = through_a_file(state, tmp_path)
    assert found[7]["by number"].dtype == np.int8
    found[7]["by number"] = found[7]["by number"].tolist()
    expected: dict[Any, Any] = {**state, 7: {"by number": [0, 1, 2]}}
    assert found == expected


def test_a_state_is_a_copy() -> None:
    array, tensor = np.zeros(2), torch.zeros(2)
    plain = to_plain({"array": array, "tensor": tensor})
    array += 1.0
    tensor += 1.0
    found = from_plain(plain)
    assert found["array"].tolist() == found["tensor"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [1, {"b": {1, 2}}]}, r"state\['a'\]\[1\]\['b'\] is set"),
        ({"net": torch.nn.Linear(1, 1)}, r"state\['net'\] is Linear"),
        ({"objects": np.array([None])}, r"state\['objects'\] is an array of objects"),
    ],
)
def test_a_value_that_a_state_may_not_hold_is_refused_with_its_place(
    value: Any, where: str
) -> None:
    with pytest.raises(TypeError, match=where):
        to_plain(value)


def test_a_tensor_that_is_not_finite_is_found() -> None:
    bad = to_plain({"fine": torch.ones(2), "list": [torch.tensor([1.0, np.nan])]})
    assert find_not_finite(bad) == "state['list'][0]"
    by_number = to_plain({"state": {0: {"mean": torch.tensor([np.inf])}}})
    assert find_not_finite(by_number) == "state['state'][0]['mean']"
    assert find_not_finite(to_plain({"best": np.array([-np.inf]), "n": torch.ones(1)})) == ""
