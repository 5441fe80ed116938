"""MAPPO's recurrent networks: acting and learning remember the same, absent agents nothing new."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tree
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from ray.rllib.core.columns import Columns
from ray.rllib.core.models.base import ACTOR, CRITIC, ENCODER_OUT
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from muxrl.protocol.dense import UNAVAILABLE
from muxrl.servers.agents.keys import ACTION_MASK, AGENT_ID, ALIVE, OBS, STATE
from muxrl.servers.algorithms.mappo.rl_module import MAPPOTorchRLModule, advance, encode
from muxrl.servers.rllib.numpy_mlp import numpy_policy

CELLS = 5


def box(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)


PARTS = {OBS: box(3), STATE: box(4), AGENT_ID: box(2), ALIVE: box(1), ACTION_MASK: box(4)}


def make_module(inference_only: bool = False, **settings: Any) -> Any:
    model = vars(DefaultModelConfig(fcnet_hiddens=[8], use_lstm=True, lstm_cell_size=CELLS))
    defaults = {"agent_specific_state": True, "obs_agent_id": True, "normalize_values": True}
    return MAPPOTorchRLModule(
        observation_space=spaces.Dict(PARTS),
        action_space=spaces.Discrete(4),
        inference_only=inference_only,
        model_config={**model, **defaults, **settings},
    )


def state_of(module: Any, batch: int) -> Any:
    """Returns a state that is not the first one."""
    return tree.map_structure(lambda x: torch.randn(batch, *x.shape), module.get_initial_state())


def sequences(alive: list[list[int]]) -> dict[str, Any]:
    """Returns observations ``[B, T, ...]`` of agents that are there at some steps."""
    num, length = len(alive), len(alive[0])
    masks = torch.randint(2, (num, length, 4)).float()
    masks[..., 0] = 1.0
    return {
        OBS: torch.randn(num, length, 3),
        STATE: torch.randn(num, length, 4),
        AGENT_ID: torch.eye(2)[torch.arange(num) % 2][:, None].expand(num, length, 2),
        ALIVE: torch.tensor(alive, dtype=torch.float32)[..., None],
        ACTION_MASK: masks,
    }


def at(t: int, columns: Any) -> Any:
    return tree.map_structure(lambda x: x[:, t : t + 1], columns)


@given(
    st.integers(1, 3).flatmap(
        lambda num: st.integers(1, 6).flatmap(
            lambda length: st.lists(
                st.lists(st.integers(0, 1), min_size=length, max_size=length),
                min_size=num,
                max_size=num,
            )
        )
    ),
    st.integers(0, 100),
)
def test_absent_steps_are_as_if_they_were_not_there(alive: list[list[int]], seed: int) -> None:
    torch.manual_seed(seed)
    encoder = make_module().encoder
    present = torch.tensor(alive, dtype=torch.float32)[..., None]
    x = torch.randn(*present.shape[:2], 5)
    state = {key: torch.randn(len(alive), 1, CELLS) for key in "hc"}
    with torch.no_grad():
        at_once = encode(encoder, x, state, present)
        by_step, after = advance(encoder, x, state, present)
        for row, times in enumerate(alive):
            there = [t for t, is_there in enumerate(times) if is_there]
            mine = {key: value[row : row + 1] for key, value in state.items()}
            if there:
                alone = encoder({Columns.OBS: x[row : row + 1, there], Columns.STATE_IN: mine})
                for features in (at_once, by_step):
                    torch.testing.assert_close(features[row, there], alone[ENCODER_OUT][0])
                mine = alone[Columns.STATE_OUT]
            for key, value in mine.items():
                torch.testing.assert_close(after[key][row], value[0])


def test_acting_step_by_step_is_what_is_learned_from_whole_sequences() -> None:
    module = make_module()
    obs = sequences([[1, 1, 0, 1, 1], [0, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    state = state_of(module, 3)
    whole = {Columns.OBS: obs, Columns.STATE_IN: state}
    with torch.no_grad():
        learned = module.forward_train(whole)[Columns.ACTION_DIST_INPUTS]
        values = module.compute_values(whole)
        acted, valued = [], []
        for t in range(5):
            step = {Columns.OBS: at(t, obs), Columns.STATE_IN: state}
            valued.append(module.compute_values(step))
            outputs = module.forward_exploration(step)
            acted.append(outputs[Columns.ACTION_DIST_INPUTS])
            state = outputs[Columns.STATE_OUT]
    present = obs[ALIVE][..., 0] > 0
    torch.testing.assert_close(learned[present], torch.cat(acted, 1)[present])
    torch.testing.assert_close(values, torch.cat(valued, 1))
    assert torch.equal((learned == UNAVAILABLE)[present], (obs[ACTION_MASK] == 0)[present])


@pytest.mark.parametrize("is_there", [1, 0])
def test_an_absent_agent_keeps_its_memory_and_its_critic_goes_on(is_there: int) -> None:
    module = make_module()
    state = state_of(module, 1)
    after = module.forward_inference(
        {Columns.OBS: sequences([[is_there]]), Columns.STATE_IN: state}
    )[Columns.STATE_OUT]
    for key in "hc":
        assert torch.equal(after[ACTOR][key], state[ACTOR][key]) is not bool(is_there)
        assert not torch.equal(after[CRITIC][key], state[CRITIC][key])


def test_the_critic_s_memory_and_the_actor_s_are_apart() -> None:
    module = make_module()
    obs, state, other = sequences([[1, 1]]), state_of(module, 1), state_of(module, 1)

    def both(actor: Any, critic: Any) -> tuple[torch.Tensor, torch.Tensor]:
        batch = {Columns.OBS: obs, Columns.STATE_IN: {ACTOR: actor, CRITIC: critic}}
        with torch.no_grad():
            logits = module.forward_train(batch)[Columns.ACTION_DIST_INPUTS]
            return logits, module.compute_values(batch)

    logits, values = both(state[ACTOR], state[CRITIC])
    with_other_actor = both(other[ACTOR], state[CRITIC])
    with_other_critic = both(state[ACTOR], other[CRITIC])
    assert not torch.equal(with_other_actor[0], logits)
    assert torch.equal(with_other_actor[1], values)
    assert torch.equal(with_other_critic[0], logits)
    assert not torch.equal(with_other_critic[1], values)


def test_the_copy_that_acts_for_a_learner_follows_its_critic_too() -> None:
    """Else the recorded states would be those of a critic that has never learned."""
    learns, acts = make_module(), make_module(inference_only=True)
    assert acts.acting_keys == (OBS, AGENT_ID, ACTION_MASK, ALIVE, STATE)
    assert numpy_policy(acts) is None
    state = learns.get_state(inference_only=True)
    assert state.keys() == learns.state_dict().keys()
    acts.set_state(state)
    batch = {Columns.OBS: sequences([[1], [0]]), Columns.STATE_IN: state_of(learns, 2)}
    expected = learns.forward_exploration(batch)
    tree.map_structure(torch.testing.assert_close, acts.forward_exploration(batch), expected)


def test_a_frozen_copy_has_no_critic_and_acts_the_same() -> None:
    learns = make_module()
    frozen = make_module(inference_only=True, **learns.frozen_model_config)
    frozen.set_state(learns.get_state(inference_only=True))
    assert not hasattr(frozen, "critic")
    assert frozen.acting_keys == (OBS, AGENT_ID, ACTION_MASK, ALIVE)
    assert frozen.get_initial_state().keys() == {ACTOR}
    obs, state = sequences([[1], [0]]), state_of(learns, 2)
    expected = learns.forward_inference({Columns.OBS: obs, Columns.STATE_IN: state})
    got = frozen.forward_inference(
        {
            Columns.OBS: {key: obs[key] for key in frozen.acting_keys},
            Columns.STATE_IN: {ACTOR: state[ACTOR]},
        }
    )
    del expected[Columns.STATE_OUT][CRITIC]
    tree.map_structure(torch.testing.assert_close, got, expected)
