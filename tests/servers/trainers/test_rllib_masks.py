from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchCategorical
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from muxrl.servers.agents.keys import ACTION_MASK, OBS
from muxrl.servers.trainers.rllib.masks import MaskablePPOTorchRLModule, masked

SEES = spaces.Box(-1, 1, (3,), np.float32)
ACTS = spaces.Discrete(4)
MASKED = spaces.Dict({OBS: SEES, ACTION_MASK: spaces.Box(0, 1, (4,), np.float32)})


def model_config(**fields: Any) -> dict[str, Any]:
    return vars(DefaultModelConfig(fcnet_hiddens=[8], vf_share_layers=False, **fields))


def make_module(cls: type, space: spaces.Space, **fields: Any) -> Any:
    return cls(
        observation_space=space,
        action_space=ACTS,
        inference_only=False,
        model_config=model_config(**fields),
    )


def some_obs(batch: int = 5) -> dict[str, torch.Tensor]:
    masks = torch.ones(batch, 4)
    masks[:, 1] = 0.0
    masks[0, 2:] = 0.0
    return {OBS: torch.randn(batch, 3), ACTION_MASK: masks}


def drawn_from(logits: torch.Tensor, mask: torch.Tensor) -> TorchCategorical:
    key = Columns.ACTION_DIST_INPUTS
    outputs = masked({key: logits}, {Columns.OBS: {ACTION_MASK: mask}})
    return TorchCategorical(outputs[key])


def test_masked_probabilities_are_those_of_the_available_actions() -> None:
    logits = torch.tensor([[0.3, 5.0, -1.2, 0.8]])
    found = drawn_from(logits, torch.tensor([[1.0, 0.0, 1.0, 1.0]]))
    alone = TorchCategorical(logits[:, [0, 2, 3]])
    for i, action in enumerate((0, 2, 3)):
        assert found.logp(torch.tensor([action])) == alone.logp(torch.tensor([i]))
    assert found.entropy() == pytest.approx(float(alone.entropy()), rel=1e-6)
    assert found.kl(found) == 0.0
    assert found._dist.probs[0, 1] == 0.0


def test_no_gradient_reaches_an_unavailable_action_and_none_is_nan() -> None:
    logits = torch.randn(6, 4, requires_grad=True)
    mask = some_obs(6)[ACTION_MASK]
    distribution = drawn_from(logits, mask)
    (distribution.entropy().sum() + distribution.logp(torch.zeros(6).long()).sum()).backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad[mask == 0] == 0).all()
    assert (logits.grad[1:, 2] != 0).all()


def test_with_all_actions_available_it_equals_rllibs_module() -> None:
    plain = make_module(DefaultPPOTorchRLModule, SEES)
    ours = make_module(MaskablePPOTorchRLModule, MASKED)
    without = make_module(MaskablePPOTorchRLModule, SEES)
    for module in (ours, without):
        module.load_state_dict(plain.state_dict())
    obs = torch.randn(5, 3)
    expected = plain.forward_train({Columns.OBS: obs})[Columns.ACTION_DIST_INPUTS]
    in_dict = {Columns.OBS: {OBS: obs, ACTION_MASK: torch.ones(5, 4)}}
    assert torch.equal(ours.forward_train(in_dict)[Columns.ACTION_DIST_INPUTS], expected)
    assert torch.equal(
        without.forward_train({Columns.OBS: obs})[Columns.ACTION_DIST_INPUTS], expected
    )
    values = plain.compute_values({Columns.OBS: obs})
    assert torch.equal(ours.compute_values(in_dict), values)
    assert torch.equal(without.compute_values({Columns.OBS: obs}), values)


def test_masks_are_for_discrete_actions_only() -> None:
    with pytest.raises(ValueError, match=r"action space is Box.*it must be Discrete"):
        MaskablePPOTorchRLModule(
            observation_space=MASKED,
            action_space=spaces.Box(-1, 1, (2,), np.float32),
            inference_only=False,
            model_config=model_config(),
        )
