from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from muxrl.servers.algorithms.recorded_rows import recorded_rows


def one_of(kind: str, rng: np.random.Generator) -> Any:
    if kind == "vector":
        return rng.normal(size=3).astype(np.float32)
    if kind == "integer":
        return int(rng.integers(5))
    return {"a": rng.normal(size=2), "b": {"c": rng.integers(2, size=(2, 2))}}


@pytest.mark.parametrize("kind", ["vector", "integer", "dict"])
@pytest.mark.parametrize("lookback", [0, 1, 3])
def test_rows_of_lists_are_those_of_rllibs_arrays(kind: str, lookback: int) -> None:
    rng = np.random.default_rng(lookback)

    def episode() -> SingleAgentEpisode:
        return SingleAgentEpisode(
            observations=[one_of(kind, rng) for _ in range(7)],
            actions=[one_of(kind, rng) for _ in range(6)],
            rewards=list(rng.normal(size=6)),
            len_lookback_buffer=lookback,
        )

    state = rng.bit_generator.state
    listed = episode()
    rng.bit_generator.state = state
    arrays = episode().to_numpy()
    for name, theirs in (
        ("observations", arrays.get_observations()),
        ("actions", arrays.get_actions()),
        ("rewards", arrays.get_rewards()),
    ):
        for given in (listed, arrays):
            np.testing.assert_equal(recorded_rows(getattr(given, name)), theirs)
        if isinstance(theirs, np.ndarray):
            assert recorded_rows(getattr(listed, name)).dtype == theirs.dtype
