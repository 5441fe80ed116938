"""Turn-based games like PettingZoo's classic ones, in which an agent that is done has a mask of
zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.servers.scripted_store import ScriptedStore, make_plan

from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.messages import Step
from muxrl.protocol.spaces import Box, DictSpace, MultiBinary
from muxrl.servers.lookup import find, own_algorithms

MASKED = DictSpace({"observation": Box((2,)), "action_mask": MultiBinary(3)})
TEAM = {"team": ("a", "b")}


def shown(*mask: int) -> dict[str, Any]:
    return {"observation": np.ones(2, np.float32), "action_mask": np.array(mask, np.int8)}


@pytest.mark.parametrize("is_truncated", [False, True])
@pytest.mark.parametrize("groups", [None, TEAM])
@pytest.mark.parametrize(
    "name",
    [e.name for e in own_algorithms() if e.name != "MASAC"],  # a Box has no masks
)
def test_a_final_observation_may_have_a_mask_of_zeros(
    name: str, groups: Any, is_truncated: bool
) -> None:
    seating = find(name).seating
    groups = seating.complete_groups(groups or {}, ["a", "b"])
    plan = make_plan(dict.fromkeys("ab", MASKED), groups, late_members="allow")
    store = ScriptedStore(plan, seating=seating)
    store.start()
    for t in range(4):
        store.step(t, observations={"ab"[t % 2]: shown(1, 1, 0)})
    finals = {"a": shown(0, 0, 0), "b": shown(0, 0, 0)}
    forbidden = Step("e", 4, {"a": shown(0, 0, 0)})
    assert "forbids every action" in store.refused(forbidden, ValueMismatch).message
    store.end(4, is_truncated=is_truncated, rewards={"a": 1.0, "b": -1.0},
              final_observations=finals)  # fmt: skip
    assert set(store.flags().values()) == {(not is_truncated, is_truncated)}
    for one in store.chunks[0].trajectories:
        # The last observation has an allowed action, since its value is bootstrapped.
        assert np.all(np.any(one.observations["action_mask"][-1], axis=-1))
