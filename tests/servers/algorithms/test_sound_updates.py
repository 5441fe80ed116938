"""Numbers that would spoil a learner reach no optimizer, and a policy without data is not
updated."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import tree
from tests.nights import at_night
from tests.servers.resumable import CASES, Served, plan_of

from muxrl.protocol.rows import each_array
from muxrl.servers.agents.keys import OBS
from muxrl.servers.algorithms.columns import REWARDS
from muxrl.servers.algorithms.replay.replay_trainer import ReplayTrainer
from muxrl.servers.trainers.plain_state import find_not_finite
from muxrl.servers.training.policies import LearnerDiverged

LEARNERS = at_night(
    (case for case in CASES if "normalised" not in case and "stacked" not in case),
    ["MAPPO with an LSTM", "MASAC", "VDN", "IQL", "PPO with schedules"],
    # by day: PPO with an LSTM, MASAC that standardizes rewards, QMIX and QPLEX
)


class Caught:
    """Trainers that have learned, and the pieces of their last update."""

    def __init__(self, case: str) -> None:
        self.served = Served(plan_of(case))
        self.acting = self.served.policies.acting
        self.learners = self.acting.learners
        self._learn_all = self.learners.learn_all
        self.learners.learn_all = self._kept  # type: ignore[method-assign]
        self.served.play(0, 16)
        self.served.end()

    def _kept(self, played: Any, env_steps: int) -> Any:
        self.played = copy.deepcopy(played)
        return self._learn_all(played, env_steps)

    def update(self, spoil: str = "", value: float = 1e30) -> None:
        """Makes the last update once more, perhaps with `value` in its rewards or observations."""
        played = copy.deepcopy(self.played)
        for trainer in self.learners.values():
            if isinstance(trainer, ReplayTrainer):
                played[trainer.policy.policy_id] = []
                trainer._due = 1.0
                trainer.draw = partial(drawn, type(trainer).draw, trainer, spoil, value)  # type: ignore[method-assign]
        for one in (one for own in played.values() for one in own if spoil):
            if spoil == "reward":
                one.rewards[-1] = value
            else:
                one.observations[...] = value
        self._learn_all(played, self.acting.num_env_steps_sampled)

    def trained(self) -> list[np.ndarray]:
        """Returns all trained weights and optimizer states, without targets, which move by
        themselves."""
        found: list[Any] = []
        for trainer in self.learners.values():
            found += [v for name, v in trainer.net.state_dict().items() if "target" not in name]
            found += tree.flatten([step.optimizer.gathered() for step in trainer.steps.values()])
        return [torch.as_tensor(leaf).detach().clone().numpy() for leaf in found]


def drawn(draw: Callable[[Any], Any], trainer: Any, spoil: str, value: float) -> Any:
    """Draws from a replay; returns the batch, with `value` all over its rewards or observations."""
    batch = draw(trainer)
    if spoil:
        each_array(lambda rows: rows.fill(value), batch[REWARDS if spoil == "reward" else OBS])
    return batch


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


# Numpy's warning about the deviation of advantages.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", LEARNERS)
def test_an_absurd_reward_leaves_weights_and_optimizers_as_they_were(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    caught = Caught(case)
    before = caught.trained()
    with caplog.at_level(logging.WARNING):
        caught.update("reward")
        caught.update("reward", float("nan"))
    assert same(caught.trained(), before)
    predicted = [m for m in caplog.messages if "an update is skipped" in m]
    assert "the largest number in its batch is the reward" in predicted[0]
    assert "1e+30" in predicted[0]
    assert len({message.partition(":")[0] for message in predicted}) == len(caught.learners)
    caught.update()
    after = caught.trained()
    assert not same(after, before)
    assert all(np.isfinite(leaf).all() for leaf in after)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", LEARNERS)
def test_an_algorithm_goes_on_learning_after_an_absurd_observation(case: str) -> None:
    caught = Caught(case)
    caught.update("observation")
    assert not find_not_finite(caught.acting.get("state"))
    before = caught.trained()
    caught.update()
    assert not same(caught.trained(), before)
    assert not find_not_finite(caught.acting.get("state"))


@pytest.mark.parametrize("case", ["A2C", "QMIX"])
def test_only_skipped_updates_in_a_row_end_training(case: str) -> None:
    caught = Caught(case)
    most = caught.acting.learners.skipped.most
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
        ["A2C", "APPO"],  # by day: PPO and IMPALA
    ),
)
def test_a_policy_whose_agent_stays_away_is_neither_updated_nor_judged(
    case: str, comes_in: list[int]
) -> None:
    plan = plan_of(case)
    apart = {
        a: dataclasses.replace(p, policy_id=f"p{a}", group=None) for a, p in plan.agents.items()
    }
    served = Served(dataclasses.replace(plan, agents=apart, groups={}))
    trainers: Any = served.policies.acting.learners
    states = []
    for first in (0, 24):
        served.play(first, first + 24, lambda number: "ab" if number in comes_in else "a")
        states.append({p: copy.deepcopy(trainers[p].networks()) for p in ("pa", "pb")})
    served.end()
    assert not served.problems
    one, other = states
    assert not same(tree.flatten(one["pa"]), tree.flatten(other["pa"]))
    keeps_some = bool(comes_in) and case in ("DQN", "DQN by priority", "SAC")
    if 40 not in comes_in and not keeps_some:  # replays hold steps from before
        assert same(tree.flatten(one["pb"]), tree.flatten(other["pb"]))
