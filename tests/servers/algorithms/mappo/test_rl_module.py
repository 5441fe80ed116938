from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from muxrl.protocol.dense import UNAVAILABLE
from muxrl.servers.agents.keys import ACTION_MASK, AGENT_ID, ALIVE, OBS, STATE
from muxrl.servers.algorithms.mappo.rl_module import MAPPOTorchRLModule
from muxrl.servers.rllib.numpy_mlp import numpy_policy


def box(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)


SPACE = spaces.Dict({OBS: box(3), STATE: box(5), AGENT_ID: box(2), ALIVE: box(1)})
MASKED = spaces.Dict({**SPACE.spaces, ACTION_MASK: box(4)})


def make_module(space: Any = SPACE, inference_only: bool = False, **settings: Any) -> Any:
    model = vars(DefaultModelConfig(fcnet_hiddens=[8], vf_share_layers=False))
    defaults = {"agent_specific_state": True, "obs_agent_id": False, "normalize_values": True}
    return MAPPOTorchRLModule(
        observation_space=space,
        action_space=spaces.Discrete(4),
        inference_only=inference_only,
        model_config={**model, **defaults, **settings},
    )


def some_obs(batch: int = 6) -> dict[str, torch.Tensor]:
    masks = torch.ones(batch, 4)
    masks[:, 2] = 0.0
    return {
        OBS: torch.randn(batch, 3),
        STATE: torch.randn(batch, 5),
        AGENT_ID: torch.eye(2)[torch.arange(batch) % 2],
        ALIVE: torch.ones(batch, 1),
        ACTION_MASK: masks,
    }


def logits_of(module: Any, obs: dict[str, torch.Tensor]) -> torch.Tensor:
    return module.forward_train({Columns.OBS: obs})[Columns.ACTION_DIST_INPUTS]


def values_of(module: Any, obs: dict[str, torch.Tensor]) -> torch.Tensor:
    return module.compute_values({Columns.OBS: obs})


def test_the_state_affects_the_critic_only() -> None:
    module, obs = make_module(), some_obs()
    other = {**obs, STATE: torch.randn(6, 5)}
    assert torch.equal(logits_of(module, obs), logits_of(module, other))
    assert (values_of(module, obs) != values_of(module, other)).all()


def test_gradients_keep_actor_and_critic_apart() -> None:
    module, obs = make_module(), some_obs()
    module.normalized_values({Columns.OBS: obs}).sum().backward()
    assert all(p.grad is None for p in [*module.encoder.parameters(), *module.pi.parameters()])
    assert all(p.grad is not None for p in module.critic.parameters())
    module.zero_grad()
    logits_of(module, obs).square().sum().backward()
    assert all(p.grad is None for p in module.critic.parameters())
    assert all(p.grad is not None for p in module.encoder.parameters())


@pytest.mark.parametrize("key", [OBS, AGENT_ID])
@pytest.mark.parametrize("is_specific", [True, False])
def test_without_agent_specific_state_the_critic_sees_the_state_only(
    key: str, is_specific: bool
) -> None:
    module, obs = make_module(agent_specific_state=is_specific), some_obs()
    other = {**obs, key: obs[key].flip(-1) + (key == OBS)}
    has_moved = (values_of(module, obs) != values_of(module, other)).all()
    assert bool(has_moved) is is_specific


@pytest.mark.parametrize("is_told", [True, False])
def test_the_actor_sees_its_agent_id_on_request(is_told: bool) -> None:
    module, obs = make_module(obs_agent_id=is_told), some_obs()
    other = {**obs, AGENT_ID: obs[AGENT_ID].flip(-1)}
    has_moved = not torch.equal(logits_of(module, obs), logits_of(module, other))
    assert has_moved is is_told


def test_the_serving_copy_has_no_critic_and_acts_the_same() -> None:
    module, served = make_module(), make_module(inference_only=True)
    state = module.get_state(inference_only=True)
    assert not any(key.startswith("critic") for key in state)
    served.set_state(state)
    assert not hasattr(served, "critic")
    obs = some_obs()
    acting = {Columns.OBS: {key: obs[key] for key in served.acting_keys}}
    assert served.acting_keys == (OBS,)
    assert torch.equal(
        served.forward_exploration(acting)[Columns.ACTION_DIST_INPUTS], logits_of(module, obs)
    )


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("space", [SPACE, MASKED])
def test_numpy_computes_the_same_logits(space: spaces.Dict, is_told: bool) -> None:
    module, obs = make_module(space, obs_agent_id=is_told), some_obs()
    forward = numpy_policy(module)
    assert forward is not None
    got = forward({key: obs[key].numpy() for key in module.acting_keys})
    expected = logits_of(module, obs).detach().numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert (got[:, 2] == UNAVAILABLE).all() == (space is MASKED)


def test_the_statistics_of_returns_are_in_the_checkpointed_state() -> None:
    module, copy = make_module(), make_module()
    module.critic.learn_units(torch.tensor([3.0, 9.0]))
    copy.set_state(module.get_state())
    assert float(copy.critic.normalizer.mean) == 6.0
    obs = some_obs()
    assert torch.equal(values_of(copy, obs), values_of(module, obs))


@pytest.mark.parametrize(
    "space",
    [
        box(3),
        spaces.Dict({OBS: box(3)}),
        spaces.Dict({OBS: spaces.Box(0, 1, (2, 2), np.float32), STATE: box(2)}),
        spaces.Dict({OBS: box(3), STATE: box(2), "weather": box(1)}),
    ],
)
def test_other_observation_spaces_are_refused(space: spaces.Space) -> None:
    with pytest.raises(ValueError, match=r"MAPPO needs a Dict observation .*'obs'.*'state'"):
        make_module(space)
