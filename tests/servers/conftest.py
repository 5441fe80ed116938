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
    import numpy as np
    from gymnasium import spaces

    from muxrl.servers.agents.teams import TeamSpec

    return TeamSpec(
        members=("a", "b"),
        observation_spaces={
            "a": spaces.Box(-1, 1, (3,), np.float32),
            "b": spaces.Box(-1, 1, (2,), np.float32),
        },
        action_spaces={"a": spaces.Discrete(2), "b": spaces.Discrete(4)},
    )
