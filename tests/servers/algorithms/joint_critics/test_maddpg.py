"""Targets, losses and actions of MADDPG and MATD3 equal loops over steps and members."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.servers.algorithms.joint_critics.naive import (
    DIMS,
    HAS_DIMENSION,
    NUM_ROWS,
    actor_output,
    critic_values,
    make_batch,
    make_trainer,
    numbers,
    piece_of,
    rows_of,
    team_of,
)

from muxrl.protocol.spaces import Box, DictSpace, Discrete, MultiBinary
from muxrl.servers.agents.keys import ACTION_MASK, ALIVE, OBS, STATE
from muxrl.servers.algorithms.columns import ACTIONS, NEXT_OBS, REWARDS, TERMINATEDS
from muxrl.servers.algorithms.joint_critics.maddpg import LOGIT_PENALTY, MADDPG

GAMMA, CLIP = 0.9, 0.3


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("twin_critics", "noise"), [(True, 0.5), (True, 0.0), (False, 0.0)], ids=str
)
def test_targets_equal_a_naive_loop(seed: int, twin_critics: bool, noise: float) -> None:
    """Targets equal those of a loop, whichever members are absent after a step that may be the
    last.

    A truncated step looks like one in mid-episode: there is an observation after it.
    """
    trainer = make_trainer(
        MADDPG, twin_critics=twin_critics, gamma=GAMMA, target_noise=noise, target_noise_clip=CLIP
    )
    torch._foreach_mul_([p.data for p in trainer.net.target_actor.parameters()], 3.0)
    largest = 0.0
    batch = make_batch(np.random.default_rng(seed))
    drawn = noise * np.random.default_rng(seed).standard_normal((NUM_ROWS, 3, 3), np.float32)
    trainer.rng = np.random.default_rng(seed)
    target = numbers(trainer.target(batch))
    assert noise == 0.0 or (np.abs(drawn) > CLIP).any()
    after = {key: numbers(value) for key, value in batch[NEXT_OBS].items()}
    assert 0 < after[ALIVE].sum() < after[ALIVE].size
    for row in range(NUM_ROWS):
        joint = np.zeros((3, 3))
        for member, dim in enumerate(DIMS.values()):
            if after[ALIVE][row, member]:
                output = actor_output(trainer.net.target_actor, after[OBS][row, member], member)
                for d in range(dim):
                    smoothed = np.tanh(output[d]) + np.clip(drawn[row, member, d], -CLIP, CLIP)
                    joint[member, d] = np.clip(smoothed, -1.0, 1.0)
                    largest = max(largest, abs(smoothed))
        seen = np.concatenate([after[STATE][row], after[ALIVE][row], joint.ravel()])
        values = critic_values(trainer.net.target_critic, seen)
        assert len(values) == (2 if twin_critics else 1)
        expected = float(batch[REWARDS][row])
        if not batch[TERMINATEDS][row]:
            expected += GAMMA * min(values)
        assert target[row] == pytest.approx(expected, abs=1e-5)
    assert noise == 0.0 or largest > 1.0


def test_a_member_is_valued_beside_what_the_others_did() -> None:
    trainer, batch = make_trainer(MADDPG), make_batch(np.random.default_rng(0))
    obs, taken = batch[OBS], batch[ACTIONS]
    acted = torch.from_numpy(trainer.act(rows_of(obs)).actions)
    found = numbers(trainer.values_of_own_actions(obs, taken, acted))
    assert found.shape == (NUM_ROWS, 3)
    seen = {key: numbers(value) for key, value in obs.items()}
    for row in range(NUM_ROWS):
        for member in range(3):
            joint = numbers(taken)[row]
            output = actor_output(trainer.net.actor, seen[OBS][row, member], member)
            joint[member] = np.tanh(output)
            joint *= HAS_DIMENSION * seen[ALIVE][row][:, None]
            x = np.concatenate([seen[STATE][row], seen[ALIVE][row], joint.ravel()])
            expected = critic_values(trainer.net.critic, x)[0]  # the first of both critics
            assert found[row, member] == pytest.approx(expected, abs=1e-5)
    present = seen[ALIVE] > 0
    loss = trainer.policy_loss(batch).item()
    assert loss == pytest.approx(-found[present].mean(), abs=1e-5)


def test_the_gradient_of_a_members_value_reaches_its_own_action_alone() -> None:
    trainer, batch = make_trainer(MADDPG), make_batch(np.random.default_rng(1))
    obs = batch[OBS]
    actions = torch.from_numpy(trainer.act(rows_of(obs)).actions).requires_grad_()
    values = trainer.values_of_own_actions(obs, batch[ACTIONS], actions)
    for member in range(3):
        (slope,) = torch.autograd.grad(values[:, member].sum(), actions, retain_graph=True)
        # If the member is present, each of its dimensions has a slope; all other actions have none.
        expected = np.zeros((NUM_ROWS, 3, 3), bool)
        expected[:, member] = obs[ALIVE].numpy()[:, member, None] > 0
        assert not slope.numpy()[~expected].any()
        assert slope.numpy()[expected].reshape(-1, 3)[:, HAS_DIMENSION[member] > 0].all()


def test_noise_explores_within_the_box_and_follows_its_schedule() -> None:
    trainer = make_trainer(MADDPG, exploration_noise=[(0, 0.4), (100, 0.0)])
    seen = {OBS: np.random.default_rng(0).normal(size=(2_000, 3, 3)).astype(np.float32)}
    greedy = trainer.act(rows_of(seen)).actions

    def drawn(t: int) -> np.ndarray:
        actions: np.ndarray = trainer.act(rows_of(seen, explores=True, env_steps=t)).actions
        return actions

    np.testing.assert_array_equal(drawn(100), greedy)
    for t, deviation in ((0, 0.4), (50, 0.2)):
        # The third member has all dimensions. Far from the bounds nothing is clipped.
        noise, inner = drawn(t) - greedy, np.abs(greedy[:, 2]) < 0.15
        assert noise[:, 2][inner].std() == pytest.approx(deviation, rel=0.05)
        assert noise[:, 2][inner].mean() == pytest.approx(0.0, abs=0.03)
    with torch.no_grad():
        trainer.net.actor[4].bias[:] = 30.0
    assert drawn(0).max() == 1.0
    assert (drawn(0)[:, HAS_DIMENSION == 0] == 0.0).all()
    trainer.env_steps = 25
    piece = piece_of(np.random.default_rng(0), 4)
    assert trainer.learn([piece])["exploration_noise"] == pytest.approx(0.3)


def updates_of_actor(trainer: Any) -> int:
    """Returns how many updates the actor has had."""
    steps = trainer.steps["policy"].optimizer.gathered().values()
    return max((int(one["step"]) for one in steps), default=0)


@pytest.mark.parametrize("policy_delay", [1, 3])
def test_actor_and_targets_move_at_every_so_manyth_update(policy_delay: int) -> None:
    trainer = make_trainer(
        MADDPG, policy_delay=policy_delay, num_steps_before_learning=1, batch_size_steps=8
    )
    rng = np.random.default_rng(0)
    for t in range(7):
        before = {n: one.clone() for n, one in trainer.networks().items()}
        metrics = trainer.learn([piece_of(rng, 1, t=t)])
        moved = {n.partition(".")[0] for n, one in trainer.networks().items()
                 if not torch.equal(one, before[n])}  # fmt: skip
        is_turn = (t + 1) % policy_delay == 0
        every = {"actor", "critic", "target_actor", "target_critic"}
        assert moved == (every if is_turn else {"critic"})
        assert updates_of_actor(trainer) == (t + 1) // policy_delay
        # Later records repeat the last loss.
        assert ("policy_loss" in metrics) == (t + 1 >= policy_delay)
        assert metrics["num_updates"] == t + 1


# --- members that choose ----------------------------------------------------------------

MASKED_TEAM = team_of(
    {"a": DictSpace({"x": Box((3,)), "action_mask": MultiBinary(3)}), "b": Box((3,))},
    {"a": Discrete(3), "b": Box((2,), "float32", -1.0, 1.0)},
)


def masked_steps(num: int) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    """Returns a team's observations, in which the first member has a mask, and this mask."""
    rng = np.random.default_rng(0)
    masks = (rng.random((num, 3)) < 0.5).astype(np.float32)
    masks[np.arange(num), rng.integers(3, size=num)] = 1.0
    seen = rng.normal(size=(num, 2, 3)).astype(np.float32)
    every = np.broadcast_to(MASKED_TEAM.actions.masks, seen.shape)
    obs = {
        OBS: torch.from_numpy(seen),
        STATE: torch.from_numpy(seen.reshape(num, -1)),
        ALIVE: torch.ones(num, 2),
        ACTION_MASK: torch.from_numpy(np.stack([masks, every[:, 1]], axis=1)),
    }
    return obs, masks


def test_no_action_that_a_mask_forbids_is_chosen_drawn_or_learned() -> None:
    trainer = make_trainer(MADDPG, MASKED_TEAM)
    obs, masks = masked_steps(200)
    assert obs.keys() == trainer.policy.parts.keys()
    assert trainer.acting_keys == ("obs", "agent_id", "action_mask")
    joints, values_of = [], trainer.values_of_own_actions
    trainer.values_of_own_actions = lambda seen, taken, actions: (
        joints.append(actions) or values_of(seen, taken, actions)
    )
    outputs: list[Any] = []
    trainer.net.actor.register_forward_hook(
        lambda *got: outputs.append(got[-1]) or got[-1].retain_grad()
    )
    trainer.policy_loss({OBS: obs, ACTIONS: torch.zeros(200, 2, 3)})
    learned, predicted = joints[0], outputs[0]
    for actions in (
        trainer.act(rows_of(obs)).actions,
        trainer.act(rows_of(obs, explores=True)).actions,
        trainer.target_actions(obs).numpy(),
        learned.detach().numpy(),
    ):
        np.testing.assert_allclose(actions[:, 0].sum(1), 1.0, atol=1e-6)
        assert not actions[:, 0][masks == 0].any()
    # An action that could not be chosen gets no gradient; "b" acts in real numbers, which always
    # do.
    (learned * torch.randn(200, 2, 3)).sum().backward()
    slope = predicted.grad.numpy()
    assert not slope[:, 0][masks == 0].any()
    assert (slope[:, 0][masks.sum(1) > 1] != 0).any(1).all()
    assert slope[:, 1, :2].all()


def test_choices_are_drawn_from_the_softmax_of_the_outputs() -> None:
    trainer = make_trainer(MADDPG, MASKED_TEAM)
    obs, masks = masked_steps(1)
    num = 20_000
    many = {key: part.expand(num, *part.shape[1:]) for key, part in obs.items()}
    drawn = trainer.act(rows_of(many, explores=True)).actions[:, 0].mean(0)
    predicted = numbers(trainer.net.outputs(obs[OBS]))[0, 0]
    weights = np.exp(predicted) * masks[0]
    np.testing.assert_allclose(drawn, weights / weights.sum(), atol=0.02)


def test_outputs_of_members_that_choose_are_held_small() -> None:
    trainer = make_trainer(MADDPG, MASKED_TEAM)
    obs, _ = masked_steps(8)
    batch = {OBS: obs, ACTIONS: torch.zeros(8, 2, 3)}
    trainer.net.critic = torch.nn.Module()  # its value is 0
    trainer.values_of_own_actions = lambda *_: torch.zeros(8, 2)
    expected = LOGIT_PENALTY * np.square(numbers(trainer.net.outputs(obs[OBS]))).mean()
    assert trainer.policy_loss(batch).item() == pytest.approx(expected)
