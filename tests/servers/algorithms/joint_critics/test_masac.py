"""MASAC's targets, losses and actions equal loops over steps, members and dimensions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.servers.algorithms.joint_critics.naive import (
    DIMS,
    NUM_ROWS,
    OBS_DIM,
    actor_output,
    critic_values,
    make_batch,
    make_trainer,
    numbers,
    piece_of,
    rows_of,
)

from muxrl.servers.agents.keys import ALIVE, OBS, STATE
from muxrl.servers.algorithms.columns import ACTIONS, NEXT_OBS, REWARDS, TERMINATEDS
from muxrl.servers.algorithms.joint_critics.masac import MASAC

GAMMA, ALPHA = 0.9, 0.3


def drawn(
    trainer: MASAC, obs: np.ndarray, noise: np.ndarray, member: int
) -> tuple[np.ndarray, float]:
    """Returns a member's action and its log-density, computed dimension by dimension.

    If ``u`` has the density N(u; mean, deviation), the density of ``a = tanh(u)`` is that density
    divided by ``da/du = 1 - a^2``.
    """
    output = actor_output(trainer.net.actor, obs, member)
    action, log_density = np.zeros(3), 0.0
    for d in range(list(DIMS.values())[member]):
        mean, log_std = output[d], min(max(output[3 + d], -5.0), 2.0)
        u = mean + math.exp(log_std) * noise[d]
        action[d] = math.tanh(u)
        log_density += -0.5 * noise[d] ** 2 - log_std - 0.5 * math.log(2 * math.pi)
        log_density -= math.log(1.0 - action[d] ** 2)
    return action, log_density


def valued(
    trainer: MASAC, seen: dict[str, Any], noise: np.ndarray, row: int, critic: Any
) -> tuple[float, list[float]]:
    """Returns the lower value of actions drawn in a row, and its present members' log-densities."""
    joint, log_densities = np.zeros((3, 3)), []
    for member in np.flatnonzero(seen[ALIVE][row]):
        joint[member], own = drawn(trainer, seen[OBS][row, member], noise[row, member], member)
        log_densities.append(own)
    x = np.concatenate([seen[STATE][row], seen[ALIVE][row], joint.ravel()])
    return min(critic_values(critic, x)), log_densities


@pytest.mark.parametrize("seed", range(5))
def test_targets_equal_a_naive_loop(seed: int) -> None:
    """Targets equal those of a loop, whichever members are absent after a step that may be the
    last.

    A truncated step looks like one in mid-episode: there is an observation after it.
    """
    trainer, batch = make_trainer(MASAC, gamma=GAMMA), make_batch(np.random.default_rng(seed))
    noise = np.random.default_rng(seed).standard_normal((NUM_ROWS, 3, 3), np.float32)
    trainer.rng = np.random.default_rng(seed)
    target = numbers(trainer.target(batch, torch.tensor([ALPHA])))
    after = {key: numbers(value) for key, value in batch[NEXT_OBS].items()}
    assert 0 < after[ALIVE].sum() < after[ALIVE].size
    for row in range(NUM_ROWS):
        lower, log_densities = valued(trainer, after, noise, row, trainer.net.target_critic)
        expected = float(batch[REWARDS][row])
        if not batch[TERMINATEDS][row]:
            expected += GAMMA * (lower - ALPHA * sum(log_densities))
        assert target[row] == pytest.approx(expected, abs=1e-5)


def test_losses_equal_a_naive_loop() -> None:
    trainer = make_trainer(MASAC, initial_alpha=ALPHA, target_entropy=-0.5)
    batch, losses = make_batch(np.random.default_rng(0)), {}
    trainer.update = lambda found, batches: losses.update(found)
    rng = np.random.default_rng(3)
    rng.standard_normal((NUM_ROWS, 3, 3), np.float32)  # the noise that the target draws
    noise = rng.standard_normal((NUM_ROWS, 3, 3), np.float32)
    trainer.rng = np.random.default_rng(3)
    target = numbers(trainer.target(batch, torch.tensor([ALPHA])))
    trainer.rng = np.random.default_rng(3)
    metrics, _ = trainer.update_on(batch)
    seen = {key: numbers(value) for key, value in batch[OBS].items()}
    actor, alpha = [], []
    for row in range(NUM_ROWS):
        lower, log_densities = valued(trainer, seen, noise, row, trainer.net.critic)
        actor.append(ALPHA * sum(log_densities) - lower)
        alpha.append(-math.log(ALPHA) * sum(one - 0.5 for one in log_densities))
    assert losses["policy"].item() == pytest.approx(np.mean(actor), abs=1e-5)
    assert losses["alpha"].item() == pytest.approx(np.mean(alpha), abs=1e-5)
    values = numbers(trainer.net.values(batch[OBS], batch[ACTIONS]))
    expected = np.square(values - target).mean(1).sum()
    assert losses["qf"].item() == pytest.approx(expected, rel=1e-5)
    assert metrics["alpha_value"] == pytest.approx(ALPHA)


@pytest.mark.parametrize(
    ("settings", "expected"), [({}, [-2, -1, -3]), ({"target_entropy": -0.5}, [-0.5] * 3)]
)
def test_the_target_entropy_is_each_members(settings: Any, expected: list[float]) -> None:
    assert make_trainer(MASAC, **settings).target_entropy.tolist() == expected


@pytest.mark.parametrize("has_ids", [True, False])
def test_members_differ_by_their_id_and_by_nothing_else(has_ids: bool) -> None:
    row = np.random.default_rng(0).normal(size=OBS_DIM).astype(np.float32)
    trainer = make_trainer(MASAC, obs_agent_id=has_ids)
    first, *_, last = trainer.act(rows_of({OBS: np.tile(row, (1, 3, 1))})).actions[0]
    assert (first[0] != last[0]) == has_ids


def test_log_densities_are_finite_and_exact_even_if_tanh_saturates() -> None:
    trainer = make_trainer(MASAC)
    with torch.no_grad():
        trainer.net.actor[4].bias[:3] = 30.0  # tanh(30) is 1 in float32
    actions, logp = trainer.draw_actions(make_batch(np.random.default_rng(0))[OBS][OBS])
    assert (actions[:, 2] == 1.0).all()
    assert logp.isfinite().all()
    # There log(1 - tanh(u)^2) is log 4 - 2 u, so that the density grows with e^(2 u).
    assert (logp[:, 2] > 3 * (2 * 25.0 - math.log(4.0)) - 20.0).all()
    logp.sum().backward()
    assert all(p.grad.isfinite().all() for p in trainer.net.actor.parameters())


def test_masac_acts_by_the_policy_that_it_learns() -> None:
    trainer, batch = make_trainer(MASAC), make_batch(np.random.default_rng(0))
    trainer.rng = np.random.default_rng(3)
    learned, logp = trainer.draw_actions(batch[OBS][OBS])
    explored = trainer.act(rows_of(batch[OBS], explores=True, seed=3)).actions
    np.testing.assert_allclose(learned.detach().numpy(), explored, atol=1e-6)
    assert logp.shape == (NUM_ROWS, 3)


def test_twins_begin_apart_and_a_seed_decides_on_both() -> None:
    first, second = make_trainer(MASAC), make_trainer(MASAC)
    for one, other in zip(first.net.parameters(), second.net.parameters(), strict=True):
        assert torch.equal(one, other)
    for weight in first.net.critic.weights:
        assert not torch.equal(weight[0], weight[1])


def test_an_update_moves_actor_critics_targets_and_temperature() -> None:
    trainer = make_trainer(MASAC, num_steps_before_learning=10, batch_size_steps=8)
    before = {name: one.clone() for name, one in trainer.networks().items()}
    alpha = trainer.temperature.log.item()
    trainer.learn([piece_of(np.random.default_rng(0), 20)])
    assert {name.split(".")[0] for name in before} == {"actor", "critic", "target_critic"}
    assert not any(torch.equal(one, before[name]) for name, one in trainer.networks().items())
    assert trainer.temperature.log.item() != alpha
