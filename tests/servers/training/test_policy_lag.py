"""The policy lag: how many versions the weights are ahead of a batch's actions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from muxrl.servers.training.thread import PolicyLag


def chunk(*weights_seq_nos: int) -> Any:
    return SimpleNamespace(weights_seq_nos=np.array(weights_seq_nos))


def test_the_lag_is_over_all_actions_of_all_chunks() -> None:
    assert PolicyLag.of([chunk(3, 5), chunk(4, 4)], 5) == PolicyLag(mean=1.0, max=2)


def test_the_lag_is_0_if_all_actions_are_by_the_newest_weights() -> None:
    assert PolicyLag.of([chunk(7)], 7) == PolicyLag()
