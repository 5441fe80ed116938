"""SAC: its losses with continuous and discrete actions and masks, how it acts, its critics'
inputs."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tests.servers.algorithms import test_dqn
from tests.servers.algorithms.playing import make, spec_of
from tests.servers.algorithms.test_dqn import ACTS, GAMMA, ROWS, make_batch, rows_of, some_masks
from torch import Tensor
from torch.distributions import Normal

from muxrl.servers.agents.keys import ACTION_MASK, OBS
from muxrl.servers.algorithms.sac import SAC
from muxrl.servers.episodes.trajectories import Trajectory

ALPHA = 3.0
BOX = gymnasium.spaces.Box(-1.0, 1.0, (2,))


def made(space: gymnasium.Space = ACTS, **how: Any) -> Any:
    return test_dqn.made(cls=SAC, space=space, **how)


def learned(trainer: Any, batch: dict[str, Any]) -> tuple[dict[str, float], Tensor]:
    metrics, priorities = trainer.update_on(batch)
    return {n: float(v() if callable(v) else v) for n, v in metrics.items()}, priorities


def without_masks(batch: dict[str, Any]) -> dict[str, Any]:
    return {key: one[OBS] if isinstance(one, dict) else one for key, one in batch.items()}


def allowed(batch: dict[str, Any], row: int, column: str = "obs") -> list[int]:
    found: list[int] = batch[column][ACTION_MASK][row].nonzero().flatten().tolist()
    return found


def huber(error: float) -> float:
    return 0.5 * error**2 if abs(error) < 1 else abs(error) - 0.5


# --- discrete actions -----------------------------------------------------------------------


@pytest.mark.parametrize("is_far", [False, True], ids=["near", "far"])
def test_losses_are_sums_over_allowed_actions(is_far: bool) -> None:
    """The losses are right also if logits and values of forbidden actions are far above the
    others."""
    trainer = made(has_masks=True, initial_alpha=ALPHA, target_entropy=0.7)
    net = trainer.net
    if is_far:
        with torch.no_grad():
            for head in (net.pi, *(one[1] for one in (*net.critics, *net.targets))):
                head[-1].bias[3] += 200.0
    batch = make_batch(some_masks(), some_masks())
    seen, then = batch["obs"][OBS], batch["new_obs"][OBS]
    with torch.no_grad():
        logits, next_logits = net.inputs(seen), net.inputs(then)
        q, twin = (one(seen) for one in net.critics)
        target_q = torch.min(*(one(then) for one in net.targets))
    policy, critics, temperature, errors = [], [], [], []
    for row in range(ROWS):
        here, there = allowed(batch, row), allowed(batch, row, "new_obs")
        log_probs = torch.log_softmax(logits[row, here], -1).tolist()
        terms = list(zip(log_probs, torch.min(q, twin)[row, here].tolist(), strict=True))
        policy.append(sum(np.exp(lp) * (ALPHA * lp - worth) for lp, worth in terms))
        temperature.append(sum(np.exp(lp) * lp for lp in log_probs) + 0.7)
        next_log_probs = torch.log_softmax(next_logits[row, there], -1).tolist()
        worths = target_q[row, there].tolist()
        value = sum(
            np.exp(lp) * (worth - ALPHA * lp)
            for lp, worth in zip(next_log_probs, worths, strict=True)
        )
        discount = 0.0 if row == 1 else GAMMA ** (2 if row == 2 else 1)
        target = float(batch["rewards"][row]) + discount * value
        of_taken = [float(one[row, batch["actions"][row]]) - target for one in (q, twin)]
        critics.append([float(batch["weights"][row]) * huber(error) for error in of_taken])
        errors.append(np.abs(of_taken).mean())
    before = copy.deepcopy(net.state_dict())
    metrics, priorities = learned(trainer, batch)
    assert metrics["policy_loss"] == pytest.approx(np.mean(policy), rel=1e-4, abs=1e-5)
    found = [metrics["qf_loss"], metrics["qf_twin_loss"]]
    assert found == pytest.approx(np.mean(critics, axis=0).tolist(), rel=1e-4)
    expected = -np.log(ALPHA) * np.mean(temperature)
    assert metrics["alpha_loss"] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert priorities.numpy() == pytest.approx(np.array(errors), rel=1e-4)
    moved = net.pi[-1].bias != before["pi.0.bias"]
    assert not moved[3]  # action 3 is never allowed
    assert moved[0]


@pytest.mark.parametrize("has_masks", [True, False])
@pytest.mark.parametrize("twin_q", [True, False])
def test_sac_learns_even_if_a_probability_underflows(twin_q: bool, has_masks: bool) -> None:
    trainer = made(has_masks=has_masks, twin_q=twin_q)
    with torch.no_grad():
        trainer.net.pi[-1].bias[1] += 120.0
    batch = make_batch(torch.ones(ROWS, 4), torch.ones(ROWS, 4))
    batch = batch if has_masks else without_masks(batch)
    metrics, _ = learned(trainer, batch)
    assert np.isfinite([*metrics.values()]).all()
    assert not trainer.skipped.num
    assert ("qf_twin_loss" in metrics) == twin_q
    assert trainer.steps["qf"].norms[""] > 0.0


@pytest.mark.parametrize("has_masks", [True, False])
def test_the_automatic_target_entropy_is_a_share_of_the_available_actions_most(
    has_masks: bool,
) -> None:
    """The target entropy is 0.3 log n, in the mean over the batch, for n available actions; alpha
    follows it."""
    trainer = made(has_masks=has_masks, initial_alpha=ALPHA)
    masks = some_masks()
    batch = make_batch(masks, some_masks())
    batch = batch if has_masks else without_masks(batch)
    with torch.no_grad():
        logits = trainer.net.inputs(batch["obs"][OBS] if has_masks else batch["obs"])
    if has_masks:
        logits = logits.masked_fill(masks == 0, -1e9)
    entropy = torch.distributions.Categorical(logits=logits).entropy().mean().item()
    metrics, _ = learned(trainer, batch)
    expected = 0.3 * np.log(masks.sum(-1).numpy()).mean() if has_masks else 0.3 * np.log(4)
    assert metrics["target_entropy"] == pytest.approx(expected, rel=1e-5)
    alpha_loss = np.log(ALPHA) * (entropy - expected)
    assert metrics["alpha_loss"] == pytest.approx(alpha_loss, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("space", "setting", "target"), [(ACTS, None, -1.0), (BOX, None, -2.0), (BOX, -5.0, -5.0)]
)
def test_the_target_entropy_may_be_a_number_or_rllibs_rule(
    space: Any, setting: Any, target: float
) -> None:
    assert made(space, target_entropy=setting)._target_entropy(None) == target


def test_the_value_of_a_policy_is_its_critics_value_of_its_actions() -> None:
    trainer, masks = made(has_masks=True), some_masks()
    rows = rows_of(np.random.default_rng(0).standard_normal((ROWS, 3)), masks.numpy())
    seen = torch.from_numpy(rows.observations)
    with torch.no_grad():
        worth = torch.min(*(one(seen) for one in trainer.net.critics))
        logits = trainer.net.inputs(seen).masked_fill(masks == 0, -1e9)
    probs = logits.softmax(-1)
    assert trainer.probabilities(rows) == pytest.approx(probs.numpy(), abs=1e-6)
    assert trainer.value(rows) == pytest.approx((probs * worth).sum(-1).numpy(), rel=1e-4)
    assert made(BOX).value(rows_of(np.zeros((1, 3)))) is None


# --- continuous actions ---------------------------------------------------------------------


def of_box() -> dict[str, Any]:
    batch = without_masks(make_batch(some_masks(), some_masks()))
    return {**batch, "actions": 2.0 * torch.rand(ROWS, 2) - 1.0}


class Given:
    """A generator that draws the given noise."""

    def __init__(self, noise: np.ndarray) -> None:
        self.noise = noise

    def standard_normal(self, shape: Any, dtype: Any) -> np.ndarray:
        assert self.noise.shape == tuple(shape)
        return self.noise


@pytest.mark.parametrize("twin_q", [False, True])
def test_losses_in_a_box_are_those_of_a_normal_through_tanh(twin_q: bool) -> None:
    trainer, batch = made(BOX, initial_alpha=ALPHA, twin_q=twin_q), of_box()
    net, noise = trainer.net, torch.randn(2, ROWS, 2)
    trainer.rng = Given(noise.numpy())

    def drawn(obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        means, logs = net.pi(net.actor(obs)).chunk(2, -1)
        one = Normal(means, logs.clamp(-5.0, 2.0).exp())
        before = means + one.stddev * noise
        slope = 1.0 - before.double().tanh() ** 2  # in float32 this is 0 where tanh saturates
        return before.tanh(), (one.log_prob(before) - slope.log()).sum(-1).float()

    def worth(critics: Any, obs: Tensor, actions: Tensor) -> list[Tensor]:
        return [one(one.encoder(obs), actions) for one in critics]

    with torch.no_grad():
        actions, log_probs = drawn(batch["new_obs"], noise[1])
        lowest = torch.stack(worth(net.targets, batch["new_obs"], actions)).amin(0)
        discount = GAMMA ** batch["n_step"] * (1.0 - batch["terminateds"])
        target = batch["rewards"] + discount * (lowest - ALPHA * log_probs)
        errors = [one - target for one in worth(net.critics, batch["obs"], batch["actions"])]
        actions, log_probs = drawn(batch["obs"], noise[0])
        lowest = torch.stack(worth(net.critics, batch["obs"], actions)).amin(0)
    metrics, priorities = learned(trainer, batch)
    policy_loss = (ALPHA * log_probs - lowest).mean().item()
    assert metrics["policy_loss"] == pytest.approx(policy_loss, rel=1e-4)
    alpha_loss = -np.log(ALPHA) * (log_probs.mean().item() - 2.0)
    assert metrics["alpha_loss"] == pytest.approx(alpha_loss, rel=1e-4)
    weights = batch["weights"].numpy()
    losses = [np.mean(weights * [huber(float(e)) for e in of_one]) for of_one in errors]
    found = [metrics[name] for name in ("qf_loss", "qf_twin_loss")[: len(losses)]]
    assert found == pytest.approx(losses, rel=1e-4)
    assert priorities.numpy() == pytest.approx(torch.stack(errors).abs().mean(0).numpy(), rel=1e-4)


def test_a_critic_fuses_what_it_makes_of_observation_and_action() -> None:
    """Each fusion layer reads both encodings again; the last has the size of the observation's."""
    model = {
        "fcnet_hiddens": [7, 5], "fusionnet_hiddens": [6, 4], "fusionnet_activation": "tanh",
        "fusionnet_kernel_initializer": "constant_",
        "fusionnet_kernel_initializer_kwargs": {"val": 0.25},
    }  # fmt: skip
    trainer = make(SAC, spec_of(BOX, (3,)), model)
    critic: Any = trainer.net.critics[0]
    assert [tuple(one.weight.shape) for one in critic.fused] == [(6, 10), (4, 16), (5, 14)]
    assert all((one.weight == 0.25).all() for one in critic.fused)
    seen, actions = torch.randn(4, 3), torch.randn(4, 2)
    a1, a2 = critic.of_action[0], critic.of_action[2]
    encoded = torch.cat([a2(a1(actions).relu()).relu(), critic.encoder(seen)], -1)
    x = critic.fused[0](encoded).tanh()
    for layer in critic.fused[1:]:
        x = layer(torch.cat([x, encoded], -1)).tanh()
    expected = critic.head(x).squeeze(-1)
    torch.testing.assert_close(critic(critic.encoder(seen), actions), expected)


@pytest.mark.parametrize("space", [ACTS, BOX], ids=["discrete", "box"])
def test_images_are_learned_from(space: Any) -> None:
    settings = {"num_steps_sampled_before_learning_starts": 8, "train_batch_size_per_learner": 8}
    trainer = make(SAC, spec_of(space, (12, 9, 3)), **settings)
    rng = np.random.default_rng(0)
    seen, actions = rng.random((13, 12, 9, 3), np.float32), np.array([space.sample()] * 12)
    trainer.env_steps = 12
    metrics = trainer.learn([Trajectory("e_a", "e", "a", "p", seen, actions, rng.random(12), {})])
    assert metrics["num_updates"] == 5
    assert np.isfinite([*metrics.values()]).all()


# --- acting ---------------------------------------------------------------------------------


def test_sac_draws_available_actions_by_their_probabilities() -> None:
    trainer = made(has_masks=True)
    masks = np.tile(np.float32([0, 1, 1, 0]), (20_000, 1))
    rows = rows_of(np.ones((20_000, 3)), masks)
    share = np.bincount(trainer.act(rows).actions, minlength=4) / 20_000
    np.testing.assert_allclose(share, trainer.probabilities(rows)[0], atol=0.02)
    assert share[[0, 3]].tolist() == [0.0, 0.0]


def test_sac_draws_from_a_normal_through_tanh_in_a_box() -> None:
    trainer, noise = made(BOX), np.random.default_rng(1).standard_normal((50, 2), np.float32)
    rows = rows_of(np.ones((50, 3)), rng=Given(noise))
    with torch.no_grad():
        means, logs = trainer.net.pi(trainer.net.actor(torch.ones(1, 3))).numpy()[0].reshape(2, 2)
    drawn = np.tanh(means + np.exp(logs.clip(-5.0, 2.0)) * noise)
    np.testing.assert_allclose(trainer.act(rows).actions, drawn, atol=1e-5)
    rows.should_explore = False
    best = np.tile(np.tanh(means), (50, 1))
    np.testing.assert_allclose(trainer.act(rows).actions, best, atol=1e-5)
