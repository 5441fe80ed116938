"""MADDPG's and MATD3's targets and losses, beside loops over steps and members."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns
from tests.servers.algorithms.joint_critics.naive import (
    DIMS,
    HAS_DIMENSION,
    NUM_ROWS,
    actor_output,
    build_module,
    critic_values,
    make_batch,
    numbers,
    team_of,
)

from muxrl.protocol.spaces import Box, DictSpace, Discrete, MultiBinary
from muxrl.servers.algorithms.maddpg import MADDPGConfig
from muxrl.servers.algorithms.maddpg.learner import td_target, values_of_own_actions
from muxrl.servers.algorithms.maddpg.rl_module import MADDPGTorchRLModule

GAMMA, CLIP = 0.9, 0.3


def make_module(**settings: Any) -> MADDPGTorchRLModule:
    module = build_module(MADDPGConfig().training(hidden_dim=16, **settings))
    assert isinstance(module, MADDPGTorchRLModule)
    return module


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("twin_critics", "noise"), [(True, 0.5), (True, 0.0), (False, 0.0)], ids=str
)
def test_targets_equal_a_naive_loop(seed: int, twin_critics: bool, noise: float) -> None:
    """Whoever is absent after the step, and whether or not the episode terminated with it.

    A truncated step looks like one in mid-episode: it has an observation after it.
    """
    module = make_module(twin_critics=twin_critics)
    batch = make_batch(np.random.default_rng(seed))
    torch.manual_seed(seed)
    target = numbers(td_target(module, batch, gamma=GAMMA, noise=noise, noise_clip=CLIP))
    torch.manual_seed(seed)
    drawn = noise * numbers(torch.randn(NUM_ROWS, 3, 3))
    assert noise == 0.0 or (np.abs(drawn) > CLIP).any()
    after = {key: numbers(value) for key, value in batch[Columns.NEXT_OBS].items()}
    assert 0 < after["alive"].sum() < after["alive"].size
    for row in range(NUM_ROWS):
        joint = np.zeros((3, 3))
        for member, dim in enumerate(DIMS.values()):
            if after["alive"][row, member]:
                output = actor_output(module._target_actor, after["obs"][row, member], member)
                for d in range(dim):
                    smoothed = np.tanh(output[d]) + np.clip(drawn[row, member, d], -CLIP, CLIP)
                    joint[member, d] = np.clip(smoothed, -1.0, 1.0)
        seen = np.concatenate([after["state"][row], after["alive"][row], joint.ravel()])
        values = critic_values(module._target_critic, seen)
        assert len(values) == (2 if twin_critics else 1)
        expected = float(batch[Columns.REWARDS][row])
        if not batch[Columns.TERMINATEDS][row]:
            expected += GAMMA * min(values)
        assert target[row] == pytest.approx(expected, abs=1e-5)


def test_a_member_is_valued_beside_what_the_others_did() -> None:
    module, batch = make_module(), make_batch(np.random.default_rng(0))
    obs, taken = batch[Columns.OBS], batch[Columns.ACTIONS]
    found = numbers(values_of_own_actions(module, obs, taken, module.actions(obs)))
    assert found.shape == (NUM_ROWS, 3)
    seen = {key: numbers(value) for key, value in obs.items()}
    for row in range(NUM_ROWS):
        for member in range(3):
            joint = numbers(taken)[row]
            joint[member] = np.tanh(actor_output(module.actor, seen["obs"][row, member], member))
            joint *= HAS_DIMENSION * seen["alive"][row][:, None]
            x = np.concatenate([seen["state"][row], seen["alive"][row], joint.ravel()])
            expected = critic_values(module.critic, x)[0]  # the first of both
            assert found[row, member] == pytest.approx(expected, abs=1e-5)


def test_the_gradient_of_a_members_value_reaches_its_own_action_alone() -> None:
    module, batch = make_module(), make_batch(np.random.default_rng(1))
    obs = batch[Columns.OBS]
    actions = module.actions(obs).detach().requires_grad_()
    values = values_of_own_actions(module, obs, batch[Columns.ACTIONS], actions)
    for member in range(3):
        (slope,) = torch.autograd.grad(values[:, member].sum(), actions, retain_graph=True)
        # Of a member that is there, each dimension that it has; of all others nothing.
        expected = np.zeros((NUM_ROWS, 3, 3), bool)
        expected[:, member] = obs["alive"].numpy()[:, member, None] > 0
        assert not slope.numpy()[~expected].any()
        assert slope.numpy()[expected].reshape(-1, 3)[:, HAS_DIMENSION[member] > 0].all()


def test_noise_explores_within_the_box_and_follows_its_schedule() -> None:
    module = make_module(exploration_noise=[(0, 0.4), (100, 0.0)])
    obs = {Columns.OBS: {"obs": torch.randn(2_000, 3, 3)}}
    greedy = module.forward_inference(obs)[Columns.ACTIONS]
    torch.testing.assert_close(module.forward_exploration(obs, t=100)[Columns.ACTIONS], greedy)
    for t, deviation in ((0, 0.4), (50, 0.2)):
        noise = (module.forward_exploration(obs, t=t)[Columns.ACTIONS] - greedy).detach().numpy()
        # The third member has all dimensions; far from the bounds, nothing is clipped.
        inner = np.abs(greedy.detach().numpy()[:, 2]) < 0.15
        assert noise[:, 2][inner].std() == pytest.approx(deviation, rel=0.05)
        assert noise[:, 2][inner].mean() == pytest.approx(0.0, abs=0.03)
    with torch.no_grad():
        module.actor[4].bias[:] = 30.0
    at_bound = module.forward_exploration(obs, t=0)[Columns.ACTIONS].detach().numpy()
    assert at_bound.max() == 1.0
    assert (at_bound[:, HAS_DIMENSION == 0] == 0.0).all()


def test_actions_stay_in_the_dimensions_that_members_have() -> None:
    module, batch = make_module(), make_batch(np.random.default_rng(0))
    for outputs in (module.forward_train(batch), module.forward_inference(batch)):
        actions = outputs[Columns.ACTIONS].detach().numpy()
        np.testing.assert_array_equal(actions != 0, np.broadcast_to(HAS_DIMENSION, actions.shape))
    targets = module.target_actions(batch[Columns.OBS], 0.2, 0.5).numpy()
    assert not targets[:, HAS_DIMENSION == 0].any()


MASKED_TEAM = team_of(
    {"a": DictSpace({"x": Box((3,)), "action_mask": MultiBinary(3)}), "b": Box((3,))},
    {"a": Discrete(3), "b": Box((2,), "float32", -1.0, 1.0)},
)


def test_no_action_that_a_mask_forbids_is_chosen_drawn_or_learned() -> None:
    config = MADDPGConfig().training(hidden_dim=16)
    module: Any = build_module(config, MASKED_TEAM)
    rng = np.random.default_rng(0)
    masks = (rng.random((200, 3)) < 0.5).astype(np.float32)
    masks[np.arange(200), rng.integers(3, size=200)] = 1.0
    seen = rng.normal(size=(200, 2, 3)).astype(np.float32)
    every = np.broadcast_to(MASKED_TEAM.actions.masks, seen.shape)
    obs = {
        "obs": torch.from_numpy(seen),
        "state": torch.from_numpy(seen.reshape(200, -1)),
        "alive": torch.ones(200, 2),
        "action_mask": torch.from_numpy(np.stack([masks, every[:, 1]], axis=1)),
    }
    assert obs.keys() == MASKED_TEAM.observation_space.spaces.keys()  # type: ignore[union-attr]
    assert module.acting_keys == ("obs", "action_mask")
    batch = {Columns.OBS: obs}
    trained = module.forward_train(batch)[Columns.ACTIONS]
    for actions in (
        module.forward_inference(batch)[Columns.ACTIONS],
        module.forward_exploration(batch)[Columns.ACTIONS],
        module.target_actions(obs, 0.2, 0.5),
        trained,
    ):
        chosen = actions[:, 0].detach().numpy()
        np.testing.assert_allclose(chosen.sum(1), 1.0, atol=1e-6)
        assert not chosen[masks == 0].any()
    # No gradient comes from what could not be chosen; "b" has real numbers, and a gradient always.
    values = torch.randn(200, 2, 3)
    outputs = []
    module.actor.register_forward_hook(
        lambda *got: outputs.append(got[-1]) or got[-1].retain_grad()
    )
    (module.forward_train(batch)[Columns.ACTIONS] * values).sum().backward()
    slope = outputs[0].grad.numpy()
    assert not slope[:, 0][masks == 0].any()
    assert (slope[:, 0][masks.sum(1) > 1] != 0).any(1).all()
    assert slope[:, 1, :2].all()
