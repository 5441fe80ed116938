"""Of agents that stay away, only their policy is not updated."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tree
from tests.servers.resumable import Served, plan_of


@pytest.mark.parametrize("algorithm", ["PPO", "APPO", "DQN"])
def test_a_policy_of_whom_nothing_is_played_stays_as_it_was_and_others_learn(
    algorithm: str,
) -> None:
    plan = plan_of(algorithm)
    agents = {a: dataclasses.replace(agent, policy_id=a) for a, agent in plan.agents.items()}
    served = Served(dataclasses.replace(plan, agents=agents))
    acting: Any = served.policies.acting
    before = acting.get("weights")
    served.play(0, 12, who=lambda number: "a")
    served.end()
    after = acting.get("weights")

    def is_same(policy_id: str) -> bool:
        both = zip(tree.flatten(before[policy_id]), tree.flatten(after[policy_id]), strict=True)
        return all(np.array_equal(one, other) for one, other in both)

    assert (is_same("a"), is_same("b")) == (False, True)
    assert acting.weights_seq_no > 1
