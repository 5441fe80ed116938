"""How far the actions of a batch were behind the weights in use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from muxrl.servers.training.thread import PolicyLag


def chunk(*weights_seq_nos: int) -> Any:
    return SimpleNamespace(weights_seq_nos=np.array(weights_seq_nos))


def test_it_is_of_all_actions_of_all_chunks() -> None:
    assert PolicyLag.of([chunk(3, 5), chunk(4, 4)], 5) == PolicyLag(mean=1.0, max=2)


def test_there_is_none_where_all_acted_by_the_weights_in_use() -> None:
    assert PolicyLag.of([chunk(7)], 7) == PolicyLag()
