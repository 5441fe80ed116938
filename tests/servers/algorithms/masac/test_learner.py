"""MASAC's targets and losses, beside loops over steps, members and dimensions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns
from tests.servers.algorithms.joint_critics.naive import (
    DIMS,
    HAS_DIMENSION,
    NUM_ROWS,
    OBS_DIM,
    actor_output,
    build_module,
    critic_values,
    make_batch,
    numbers,
)

from muxrl.servers.algorithms.masac.learner import soft_target
from muxrl.servers.algorithms.masac.masac import MASACConfig
from muxrl.servers.algorithms.masac.rl_module import LOGP, MASACTorchRLModule

GAMMA, ALPHA = 0.9, 0.3


def make_module(**settings: Any) -> MASACTorchRLModule:
    module = build_module(MASACConfig().training(hidden_dim=16, **settings))
    assert isinstance(module, MASACTorchRLModule)
    return module


def drawn(
    module: MASACTorchRLModule, obs: np.ndarray, noise: np.ndarray, member: int
) -> tuple[np.ndarray, float]:
    """Returns a member's action and its log-density, dimension by dimension.

    If ``u`` has the density N(u; mean, deviation), then ``a = tanh(u)`` has that over
    ``da/du = 1 - a^2``.
    """
    output = actor_output(module.actor, obs, member)
    action, log_density = np.zeros(3), 0.0
    for d in range(list(DIMS.values())[member]):
        mean, log_std = output[d], min(max(output[3 + d], -5.0), 2.0)
        u = mean + math.exp(log_std) * noise[d]
        action[d] = math.tanh(u)
        log_density += -0.5 * noise[d] ** 2 - log_std - 0.5 * math.log(2 * math.pi)
        log_density -= math.log(1.0 - action[d] ** 2)
    return action, log_density


@pytest.mark.parametrize("seed", range(5))
def test_targets_equal_a_naive_loop(seed: int) -> None:
    """Whoever is absent after the step, and whether or not the episode terminated with it.

    A truncated step looks like one in mid-episode: it has an observation after it.
    """
    module, batch = make_module(), make_batch(np.random.default_rng(seed))
    torch.manual_seed(seed)
    target = numbers(soft_target(module, batch, torch.tensor([ALPHA]), gamma=GAMMA))
    torch.manual_seed(seed)
    noise = numbers(torch.normal(torch.zeros(NUM_ROWS, 3, 3, 1), torch.ones(1)))[..., 0]
    after = {key: numbers(value) for key, value in batch[Columns.NEXT_OBS].items()}
    assert 0 < after["alive"].sum() < after["alive"].size
    for row in range(NUM_ROWS):
        joint, log_density = np.zeros((3, 3)), 0.0
        for member in range(3):
            if after["alive"][row, member]:
                joint[member], own = drawn(module, after["obs"][row, member], noise[row, member],
                                           member)  # fmt: skip
                log_density += own
        seen = np.concatenate([after["state"][row], after["alive"][row], joint.ravel()])
        future = min(critic_values(module._target_critic, seen)) - ALPHA * log_density
        expected = float(batch[Columns.REWARDS][row])
        if not batch[Columns.TERMINATEDS][row]:
            expected += GAMMA * future
        assert target[row] == pytest.approx(expected, abs=1e-5)


def test_what_is_recorded_of_absent_members_makes_no_difference() -> None:
    module, batch = make_module(), make_batch(np.random.default_rng(0))
    absent = batch[Columns.OBS]["alive"] == 0
    others = batch[Columns.ACTIONS].clone()
    others[absent] = 0.77
    torch.testing.assert_close(
        module.values(batch[Columns.OBS], others),
        module.values(batch[Columns.OBS], batch[Columns.ACTIONS]),
    )
    present = batch[Columns.ACTIONS].clone()
    present[~absent] += 0.1
    assert (module.values(batch[Columns.OBS], present)
            != module.values(batch[Columns.OBS], batch[Columns.ACTIONS])).any()  # fmt: skip


def test_actions_stay_in_the_dimensions_that_members_have() -> None:
    module, batch = make_module(), make_batch(np.random.default_rng(0))
    for outputs in (
        module.forward_train(batch),
        module.forward_inference(batch),
        module.forward_exploration(batch),
    ):
        actions = outputs[Columns.ACTIONS].detach().numpy()
        assert actions.shape == (NUM_ROWS, 3, 3)
        assert (np.abs(actions) <= 1.0).all()
        np.testing.assert_array_equal(actions != 0, np.broadcast_to(HAS_DIMENSION, actions.shape))


def test_members_differ_by_their_id_and_by_nothing_else() -> None:
    row = np.random.default_rng(0).normal(size=OBS_DIM).astype(np.float32)
    batch = {Columns.OBS: {"obs": torch.from_numpy(np.tile(row, (1, 3, 1)))}}
    first, *_, last = make_module().forward_inference(batch)[Columns.ACTIONS][0]
    assert first[0] != last[0]
    first, *_, last = make_module(obs_agent_id=False).forward_inference(batch)[Columns.ACTIONS][0]
    assert first[0] == last[0]


def test_log_densities_are_finite_and_exact_where_tanh_saturates() -> None:
    module = make_module()
    with torch.no_grad():
        module.actor[4].bias[:3] = 30.0  # tanh(30) is 1 in float32
    obs = make_batch(np.random.default_rng(0))[Columns.OBS]["obs"]
    torch.manual_seed(0)
    actions, logp = module.sample_actions(obs)
    assert (actions[:, 2] == 1.0).all()
    assert logp.isfinite().all()
    # log(1 - tanh(u)^2) is log 4 - 2 u there, so that a density grows with e^(2 u).
    assert (logp[:, 2] > 3 * (2 * 25.0 - math.log(4.0)) - 20.0).all()
    logp.sum().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.actor.parameters())


def test_the_train_pass_is_of_the_policy_that_explores() -> None:
    module, batch = make_module(), make_batch(np.random.default_rng(0))
    torch.manual_seed(3)
    trained = module.forward_train(batch)
    torch.manual_seed(3)
    explored = module.forward_exploration(batch)
    torch.testing.assert_close(trained[Columns.ACTIONS], explored[Columns.ACTIONS])
    assert trained[LOGP].shape == (NUM_ROWS, 3)


def test_twins_begin_apart_and_a_seed_decides_on_both() -> None:
    first, second = make_module(), make_module()
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
    for layer in (first.critic.layers[0], first.critic.layers[2], first.critic.layers[4]):
        assert not torch.equal(layer.weight[0], layer.weight[1])
