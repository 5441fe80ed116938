from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def ray_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A running Ray: `Algorithm.train` and `set_state` hand weights over through its store."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray.tune.trainable import trainable

    # Every Algorithm makes itself a directory there, by default ~/ray_results.
    trainable.DEFAULT_STORAGE_PATH = str(tmp_path_factory.mktemp("ray_results"))
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def team_of_two() -> Any:
    """Members with observations and actions of different sizes."""
    import numpy as np
    from gymnasium import spaces

    from muxrl.servers.teams import TeamSpec

    return TeamSpec(
        members=("a", "b"),
        observation_spaces={
            "a": spaces.Box(-1, 1, (3,), np.float32),
            "b": spaces.Box(-1, 1, (2,), np.float32),
        },
        action_spaces={"a": spaces.Discrete(2), "b": spaces.Discrete(4)},
    )
