"""The kit with which users test their trainers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from tests.nights import at_night
from tests.servers.trainers.brought import Counting, Forgetful, OutsideOfItsSpace, Remembering

from muxrl.servers.algorithms.dqn import DQN
from muxrl.servers.trainers.check_trainer import check_trainer
from muxrl.servers.trainers.failures import TrainerFailed
from muxrl.servers.trainers.lookup import find_trainer

EXAMPLES = Path(__file__).parents[3] / "experiments" / "examples" / "own_trainer"


def example(file: str, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(file, EXAMPLES / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def test_the_examples_pass() -> None:
    check_trainer(example("bandit", "Bandit"), num_batches=40)
    check_trainer(example("policy_gradient", "PolicyGradient"), num_batches=60, lr=0.02)
    check_trainer(example("joint_bandit", "JointBandit"), num_batches=60, has_masks=True)


def test_the_example_of_torchrl_passes() -> None:
    pytest.importorskip("torchrl", reason="an example's, in no extra of muxrl")
    check_trainer(example("torchrl_ppo", "TorchRLPPO"), num_batches=60)


_FEW = {"gamma": 0.5, "learning_rate": 0.003}
_REPLAY = {**_FEW, "batch_env_steps": 8, "learning_starts": 50, "buffer_size": 5_000}
_DISCRETE = {
    **_REPLAY, "gradient_steps": -1, "exploration_fraction": 0.5, "target_update_interval": 50
}  # fmt: skip
_CONTINUOUS = {**_REPLAY, "gradient_steps": 4, "batch_size": 32}


_PASS: dict[str, dict[str, Any]] = {
    "PPO": {**_FEW, "batch_env_steps": 32, "n_epochs": 4, "batch_size": 32},
    "A2C": {**_FEW, "batch_env_steps": 32},
    "TRPO": {**_FEW, "batch_env_steps": 64, "batch_size": 32},
    "DQN": _DISCRETE,
    "QRDQN": _DISCRETE,
    "SAC": _CONTINUOUS,
    "TD3": _CONTINUOUS,
    "TQC": _CONTINUOUS,
    "CrossQ": {**_CONTINUOUS, "gradient_steps": 8, "batch_size": 64},
}
_NUM_BATCHES = {"A2C": 150, "SAC": 60, "TD3": 60, "TQC": 60}


@pytest.mark.parametrize("name", at_night(_PASS, ["TRPO", "QRDQN", "TD3", "TQC", "CrossQ"]))
def test_stable_baselines3_passes(name: str) -> None:
    """The greedy mean reward of a step must reach 0.7; random actions get 0.33 (0.47 in a Box), the
    best 1.

    The algorithms that run only at night share all of muxrl's code with PPO, DQN and SAC.
    """
    trainer = find_trainer(f"SB3_{name}")
    assert trainer is not None
    is_discrete = name in ("PPO", "A2C", "TRPO", "DQN", "QRDQN")
    space = None if is_discrete else gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    check_trainer(
        trainer.make,
        action_space=space,
        num_batches=_NUM_BATCHES.get(name, 100),
        min_return=0.7,
        total_timesteps=5_000,
        **_PASS[name],
    )


def test_a_trainer_whose_replay_is_saved_apart_continues() -> None:
    settings = {"num_steps_sampled_before_learning_starts": 8, "train_batch_size_per_learner": 8}
    check_trainer(DQN, has_masks=True, num_batches=10, min_return=None, **settings)


def test_recurrent_states_are_arrays_where_the_class_has_an_initial_one() -> None:
    check_trainer(Remembering, num_batches=4, min_return=None)


def test_a_trainer_that_learns_nothing_does_not_pass() -> None:
    with pytest.raises(AssertionError, match=r"earns 0\.\d\d a step after 20 batches, expected"):
        check_trainer(Counting, num_batches=20)


def test_a_state_that_leaves_something_out_does_not_pass() -> None:
    with pytest.raises(AssertionError, match=r"its state\['default'\]\['num_rows'\] is another"):
        check_trainer(Forgetful, num_batches=20, min_return=None)


def test_an_action_outside_of_the_space_does_not_pass() -> None:
    with pytest.raises(TrainerFailed, match=r"OutsideOfItsSpace\.act of policy 'default'"):
        check_trainer(OutsideOfItsSpace)


def test_masks_are_followed() -> None:
    class Blind(Counting):
        """Tries each action in turn, whatever its mask allows."""

    with pytest.raises(TrainerFailed, match="which the mask of agent"):
        check_trainer(Blind, has_masks=True, num_batches=20, min_return=None)
