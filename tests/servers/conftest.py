from __future__ import annotations

from typing import Any

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def team_of_two() -> Any:
    """Members with observations and actions of different sizes."""
    from muxrl.protocol.spaces import Box, Discrete
    from muxrl.servers.agents.teams import TeamSpec

    return TeamSpec(
        members=("a", "b"),
        observation_spaces={"a": Box((3,)), "b": Box((2,))},
        action_spaces={"a": Discrete(2), "b": Discrete(4)},
    )
