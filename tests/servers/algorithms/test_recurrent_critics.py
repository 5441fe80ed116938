"""The critic whose recurrent states are recorded is the one that learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.servers.scripted_store import masked_space

from muxrl.protocol.spaces import Box, Discrete
from muxrl.servers.algorithms.registry import get_algorithm
from muxrl.servers.gymnasium_spaces import to_gymnasium

SEES = Box((3,), "float32", -1.0, 1.0)
ACTS = Discrete(4)
LSTM = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 3}


def build(name: str, *, has_masks: bool, model: dict[str, Any], inference_only: bool) -> Any:
    config = get_algorithm(name).make_config({}, model, has_masks=has_masks)
    space = masked_space(SEES, ACTS) if has_masks else SEES
    spec = config.get_rl_module_spec(
        spaces={"default_policy": (to_gymnasium(space), to_gymnasium(ACTS))},
        inference_only=inference_only,
    )
    return spec.build()


@pytest.mark.parametrize("has_masks", [False, True])
@pytest.mark.parametrize("name", ["PPO", "A2C", "IMPALA", "APPO"])
def test_who_acts_gets_all_that_it_needs_of_the_critic(
    rllib: None, name: str, has_masks: bool
) -> None:
    torch.manual_seed(0)
    learner = build(name, has_masks=has_masks, model=LSTM, inference_only=False)
    acting = build(name, has_masks=has_masks, model=LSTM, inference_only=True)
    sent = learner.get_state(inference_only=True)
    acting.set_state(sent)
    learned = learner.state_dict()
    encoders = {k: v for k, v in acting.state_dict().items() if k.startswith("encoder.")}
    assert any(key.startswith("encoder.critic_encoder.lstm.") for key in encoders)
    for key, value in encoders.items():
        assert torch.equal(value, learned[key]), key
    assert not any(key.startswith(("vf.", "_old_")) for key in sent), "which nobody acts with"


@pytest.mark.parametrize("name", ["PPO", "APPO"])
def test_without_memory_no_critic_is_sent(rllib: None, name: str) -> None:
    learner = build(name, has_masks=True, model={"fcnet_hiddens": [8]}, inference_only=False)
    assert not any("critic" in key for key in learner.get_state(inference_only=True))
