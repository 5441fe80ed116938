"""Sampling follows the policy's distribution; new weights change places with the old."""

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec

from muxrl.servers.algorithms.registry import get_algorithm
from muxrl.servers.episodes.episode import SeatRequest
from muxrl.servers.inference import Inference
from muxrl.servers.seats import SeatRecord

OBSERVATIONS = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
ACTIONS = gymnasium.spaces.Discrete(3)


def inference(**model: Any) -> Inference:
    config = get_algorithm("PPO").make_config({}, model)
    spec = config.get_default_rl_module_spec()
    spec.observation_space, spec.action_space = OBSERVATIONS, ACTIONS
    spec.inference_only, spec.model_config = True, config.model_config
    return Inference(MultiRLModuleSpec(rl_module_specs={"p": spec}).build, seed=0)


def step(num: int, should_explore: bool = True, logged: int | None = None) -> Any:
    seat = SimpleNamespace(policy_id="p", action_space=ACTIONS)
    observation = np.array([0.5, -0.5, 0.1, 0.9], np.float32)
    requests = [SeatRequest(seat, SeatRecord(), observation, logged) for _ in range(num)]  # type: ignore[arg-type]
    return SimpleNamespace(requests=requests, should_explore=should_explore, is_training=True)


@pytest.mark.parametrize("num_steps", [1, 100], ids=["in torch", "in numpy"])
def test_actions_are_drawn_from_the_distribution_that_is_recorded(num_steps: int) -> None:
    served = inference()
    steps = [step(4000 // num_steps) for _ in range(num_steps)]
    for one in steps:  # 40 rows go through numpy, 4,000 through torch
        served.act([one])
    records = [request.record for one in steps for request in one.requests]
    logits = records[0].extra_outputs[Columns.ACTION_DIST_INPUTS]
    expected = np.exp(logits) / np.exp(logits).sum()
    actions = np.array([record.action for record in records])
    drawn = np.bincount(actions, minlength=3) / len(actions)
    np.testing.assert_allclose(drawn, expected, atol=0.04)
    for record in records[:50]:
        logp = record.extra_outputs[Columns.ACTION_LOGP]
        assert logp == pytest.approx(np.log(expected[record.action]), abs=1e-4)


def test_greedy_takes_the_likeliest_and_logged_actions_stand() -> None:
    served = inference()
    greedy, logged = step(3, should_explore=False), step(2, logged=2)
    served.act([greedy, logged])
    record = greedy.requests[0].record
    assert record.action == record.extra_outputs[Columns.ACTION_DIST_INPUTS].argmax()
    for request in logged.requests:
        logits = request.record.extra_outputs[Columns.ACTION_DIST_INPUTS]
        assert request.record.action == 2
        expected = logits[2] - np.log(np.exp(logits).sum())
        assert request.record.extra_outputs[Columns.ACTION_LOGP] == pytest.approx(expected, 1e-4)


def test_loading_changes_the_copy_in_use_and_its_version() -> None:
    served, other = inference(), inference()
    before = step(1, should_explore=False)
    assert served.act([before]) == 0
    served.load(other.modules.get_state(), 7)
    after, expected = step(1, should_explore=False), step(1, should_explore=False)
    assert served.act([after]) == 7
    other.act([expected])
    inputs = [
        s.requests[0].record.extra_outputs[Columns.ACTION_DIST_INPUTS]
        for s in (before, after, expected)
    ]
    np.testing.assert_array_equal(inputs[1], inputs[2])
    assert (inputs[0] != inputs[1]).any()


def test_a_recurrent_policy_carries_its_state_from_step_to_step() -> None:
    served = inference(use_lstm=True)
    assert served.is_stateful
    one = step(1, should_explore=False)
    record = one.requests[0].record
    served.act([one])
    first = record.module_state
    served.act([one])
    assert Columns.STATE_OUT in record.extra_outputs
    flat = [np.concatenate([np.ravel(v) for v in _leaves(s)]) for s in (first, record.module_state)]
    assert (flat[0] != flat[1]).any()


def _leaves(state: Any) -> list[np.ndarray]:
    if isinstance(state, dict):
        return [leaf for value in state.values() for leaf in _leaves(value)]
    return [state]
