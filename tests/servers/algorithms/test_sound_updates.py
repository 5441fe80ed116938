"""What would spoil a learner for good reaches no optimizer, and a policy without data is left."""

from __future__ import annotations

import copy
import dataclasses
import logging
from typing import Any

import numpy as np
import pytest
import torch
import tree
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.policy.sample_batch import MultiAgentBatch
from tests.nights import at_night
from tests.servers.resumable import CASES, Served, plan_of

from muxrl.servers.algorithms.replay.learner import ReplayLearner
from muxrl.servers.learned.resume import find_not_finite
from muxrl.servers.training.policies import LearnerDiverged

LEARNERS = at_night(
    (case for case in CASES if "normalised" not in case and "stacked" not in case),
    ["MAPPO with an LSTM", "MASAC", "VDN", "IQL", "PPO with schedules"],
    # by day PPO with an LSTM, MASAC that standardizes rewards, QMIX and QPLEX
)


class Caught:
    """A learner that has learned, and what its last update was made of."""

    def __init__(self, case: str, **fields: Any) -> None:
        self.served = Served(plan_of(case, **fields))
        self.learner: Any = self.served.policies.algo.learner_group._learner
        name = "learn" if isinstance(self.learner, ReplayLearner) else "update"
        update = getattr(self.learner, name)

        def kept(*batches: Any, **arguments: Any) -> Any:
            self.arguments = copy.deepcopy((batches, arguments))
            return update(*batches, **arguments)

        setattr(self.learner, name, kept)
        self.served.play(0, 16)
        self.served.end()
        self._update = update

    def update(self, spoil: str = "", value: float = 1e30) -> None:
        batches, arguments = copy.deepcopy(self.arguments)
        if batches:
            data = TrainingData(batch=MultiAgentBatch({}, 0))
            data.batch.policy_batches = batches[0]
        else:
            data = arguments.get("training_data") or TrainingData(
                **{k: arguments[k] for k in ("batch", "episodes") if k in arguments}
            )
            data.solve_refs()
        if spoil:
            spoil_all(data, spoil, value)
        self._update(*batches, **arguments)

    def trained(self) -> list[np.ndarray]:
        """All that is trained and what goes with it, but no targets, which move by themselves."""
        state = {
            f"{module_id}/{name}": value
            for module_id, module in self.learner.module.items()
            for name, value in module.unwrapped().state_dict().items()
            if "target" not in name
        }
        state["optimizer"] = self.learner._get_optimizer_state()
        leaves = [leaf for leaf in tree.flatten(state) if not isinstance(leaf, str)]
        return [
            np.asarray(torch.as_tensor(leaf).detach().clone())
            for leaf in leaves
            if leaf is not None
        ]


def spoil_all(data: TrainingData, what: str, value: float) -> None:
    """Puts the number into the last step of every episode, or all over a batch."""
    for episode in data.episodes or ():
        for one in getattr(episode, "agent_episodes", {"": episode}).values():
            if what == "reward":
                one.rewards.data[-1] = value
            else:
                tree.map_structure(lambda leaf: leaf.fill(value), one.observations.data)
    if data.batch is not None:
        for columns in data.batch.policy_batches.values():
            if what == "reward":
                columns[Columns.REWARDS].fill_(value)
            else:
                tree.map_structure(lambda leaf: leaf.fill_(value), columns[Columns.OBS])


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of the deviation of advantages
@pytest.mark.parametrize("case", LEARNERS)
def test_an_absurd_reward_leaves_weights_and_optimizers_as_they_were(
    rllib: None, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    caught = Caught(case)
    before = caught.trained()
    with caplog.at_level(logging.WARNING):
        caught.update("reward")
        caught.update("reward", float("nan"))
    assert same(caught.trained(), before)
    said = [m for m in caplog.messages if "an update is skipped" in m]
    assert "the largest number in its batch is the reward" in said[0]
    assert "1e+30" in said[0]
    assert len({message.partition(":")[0] for message in said}) == len(caught.learner.module)
    caught.update()
    after = caught.trained()
    assert not same(after, before)
    assert all(np.isfinite(leaf).all() for leaf in after)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", LEARNERS)
def test_after_an_absurd_observation_it_goes_on_learning(rllib: None, case: str) -> None:
    caught = Caught(case)
    caught.update("observation")
    assert not find_not_finite(caught.served.policies.algo)
    before = caught.trained()
    caught.update()
    assert not same(caught.trained(), before)
    assert not find_not_finite(caught.served.policies.algo)


@pytest.mark.parametrize("case", ["A2C", "QMIX"])
def test_only_updates_that_are_skipped_in_a_row_end_it(rllib: None, case: str) -> None:
    caught = Caught(case)
    most = caught.learner.max_skipped_in_a_row
    for spoil in ["reward"] * most + [""] + ["reward"] * most:
        caught.update(spoil)
    with pytest.raises(
        LearnerDiverged, match=f"more than {most} updates of policy .* in a row were skipped"
    ):
        caught.update("reward")


@pytest.mark.parametrize(
    "comes_in",
    at_night([[0, 1, 2], [0, 20, 40], []], [[0, 1, 2]]),
    ids=["first", "1 in 20", "never"],
)
@pytest.mark.parametrize(
    "case",
    at_night(
        ["PPO", "A2C", "IMPALA", "APPO", "MAPPO", "HAPPO", "DQN", "DQN by priority", "SAC"],
        ["A2C", "APPO"],  # by day PPO and IMPALA
    ),
)
def test_a_policy_whose_agent_stays_away_is_neither_updated_nor_judged(
    rllib: None, case: str, comes_in: list[int]
) -> None:
    plan = plan_of(case)
    apart = {
        a: dataclasses.replace(p, policy_id=f"p{a}", group=None) for a, p in plan.agents.items()
    }
    served = Served(dataclasses.replace(plan, agents=apart, groups={}))
    learner: Any = served.policies.algo.learner_group._learner
    states = []
    for first in (0, 24):
        served.play(first, first + 24, lambda number: "ab" if number in comes_in else "a")
        states.append({m: copy.deepcopy(learner.module[m].get_state()) for m in ("pa", "pb")})
    served.end()
    assert not served.problems
    one, other = states
    assert not same(tree.flatten(one["pa"]), tree.flatten(other["pa"]))
    if 40 not in comes_in and case not in (
        "DQN",
        "DQN by priority",
        "SAC",
    ):  # which learn from what they keep
        assert same(tree.flatten(one["pb"]), tree.flatten(other["pb"]))
