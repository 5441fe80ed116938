"""The numpy forward pass is the module's own, number for number, or it is not used."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import RLModule

from muxrl.servers.agents.keys import ACTION_MASK, OBS
from muxrl.servers.algorithms.registry import get_algorithm
from muxrl.servers.episodes.trajectories import at
from muxrl.servers.rllib.numpy_mlp import NumpyPolicy, Stack, numpy_policy

OBSERVATIONS = gymnasium.spaces.Box(-1.0, 1.0, (8,), np.float32)
ACTIONS = gymnasium.spaces.Discrete(5)


def module_of(name: str = "PPO", **model: object) -> RLModule:
    config = get_algorithm(name).make_config({}, model)
    spec = config.get_default_rl_module_spec()
    spec.observation_space, spec.action_space = OBSERVATIONS, ACTIONS
    spec.inference_only, spec.model_config = True, config.model_config
    return spec.build()


@pytest.mark.parametrize("name", ["PPO", "A2C"])
@pytest.mark.parametrize(
    "model",
    [
        {},
        {"vf_share_layers": True},
        {"fcnet_activation": "relu", "fcnet_hiddens": [32]},
        {"head_fcnet_hiddens": [16], "head_fcnet_activation": "relu"},
    ],
    ids=str,
)
def test_it_is_the_modules_own_forward_pass(name: str, model: dict[str, object]) -> None:
    module = module_of(name, **model)
    forward = numpy_policy(module)
    assert forward is not None
    for batch_size in (1, 3, 64):
        rows = np.random.default_rng(batch_size).standard_normal((batch_size, 8), np.float32)
        before = rows.copy()
        with torch.no_grad():
            expected = module.forward_inference({Columns.OBS: torch.from_numpy(rows)})
        np.testing.assert_allclose(
            forward(rows), expected[Columns.ACTION_DIST_INPUTS].numpy(), rtol=1e-4, atol=1e-6
        )
        np.testing.assert_array_equal(rows, before)


def test_weights_loaded_in_place_are_seen() -> None:
    module, other = module_of(), module_of()
    forward = numpy_policy(module)
    assert forward is not None
    rows = np.ones((2, 8), np.float32)
    before = forward(rows)
    module.set_state(other.get_state())
    others = numpy_policy(other)
    assert others is not None
    np.testing.assert_array_equal(forward(rows), others(rows))
    assert (before != forward(rows)).any()


@pytest.mark.parametrize("model", [{"use_lstm": True}, {"fcnet_activation": "silu"}], ids=str)
def test_what_it_does_not_know_goes_through_the_module(model: dict[str, object]) -> None:
    assert numpy_policy(module_of("PPO", **model)) is None


@pytest.mark.parametrize("is_masked", [False, True])
def test_policies_of_one_form_act_together_to_the_bit(is_masked: bool) -> None:
    alone = []
    for _ in range(4):
        policy = numpy_policy(module_of(fcnet_hiddens=[64, 64]))
        assert policy is not None
        alone.append(NumpyPolicy(policy.layers, (OBS, ACTION_MASK) if is_masked else None))
    assert len({policy.form for policy in alone}) == 1
    rng, stack = np.random.default_rng(0), Stack(alone)
    for places in ((2,), (0, 3), (3, 1, 0, 2)):
        for num in (1, 3, 6, 17, 64):
            rows: Any = rng.standard_normal((len(places), num, 8), np.float32)
            if is_masked:
                rows = {OBS: rows, ACTION_MASK: np.ones((len(places), num, 5), np.float32)}
                rows[ACTION_MASK][..., 1] = 0.0
            together = stack.of(places)(rows)
            for i, place in enumerate(places):
                np.testing.assert_array_equal(together[i], alone[place](at(rows, i)))
