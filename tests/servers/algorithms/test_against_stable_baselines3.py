"""Updates of PPO, A2C, DQN and SAC equal those of Stable-Baselines3's own ``train()``.

Both begin with equal weights, in networks of equal layers, and learn from the same data.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.buffers import ReplayBufferSamples
from tests.servers.algorithms.playing import SPACES, actors_of, batch_of, make, spec_of
from tests.servers.algorithms.test_dqn import GAMMA, ROWS, make_batch, some_masks
from tests.servers.algorithms.test_sac import BOX, Given, without_masks
from torch import Tensor, nn

from muxrl.servers.algorithms.a2c import A2C
from muxrl.servers.algorithms.dqn import DQN
from muxrl.servers.algorithms.ppo import PPO
from muxrl.servers.algorithms.sac import SAC
from muxrl.servers.trainers import stable_baselines3 as sb3

Pairs = Mapping[str, tuple[nn.Module, nn.Module]]
"""By name: muxrl's network and Stable-Baselines3's."""


def tensors_of(pairs: Pairs) -> Iterator[tuple[str, Tensor, Tensor]]:
    for name, (ours, theirs) in pairs.items():
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            yield name, one, other


@torch.no_grad()
def begin_alike(pairs: Pairs, noise: float = 0.2) -> None:
    torch.manual_seed(1)
    for _, ours, theirs in tensors_of(pairs):
        ours += noise * torch.randn_like(ours)
        theirs.copy_(ours)


def assert_same(pairs: Pairs, *, has_gradient: bool = True) -> None:
    for name, ours, theirs in tensors_of(pairs):
        close = {"rtol": 1e-4, "atol": 2e-6, "msg": lambda why, of=name: f"{of}: {why}"}
        torch.testing.assert_close(ours, theirs, **close)
        if has_gradient:
            torch.testing.assert_close(ours.grad, theirs.grad, **close)
            assert ours.grad is not None
            assert ours.grad.any(), name


@pytest.mark.parametrize("kind", ["discrete", "box"])
@pytest.mark.parametrize("name", ["PPO", "A2C"])
def test_on_policy_algorithms_learn_as_stable_baselines3_s(name: str, kind: str) -> None:
    """A batch with GAE is compared, in PPO for four epochs, the later of which are clipped.

    Off are the KL penalty, which Stable-Baselines3 lacks, and standardised advantages: muxrl
    divides by the deviation over N steps, Stable-Baselines3 by that over N - 1. A2C has Adam in
    place of RMSprop.
    """
    lr, lambda_, clip = 0.02, 0.8, 0.1
    own: dict[str, Any] = {"lr": lr, "gamma": GAMMA, "lambda_": lambda_, "grad_clip": 0.4}
    given: dict[str, Any] = {"learning_rate": lr, "gamma": GAMMA, "gae_lambda": lambda_}
    given |= {"max_grad_norm": 0.4, "ent_coef": 0.02, "vf_coef": 0.7}
    own |= {"entropy_coeff": 0.02, "vf_loss_coeff": 0.7, "optimizer_epsilon": 1e-5}
    if name == "PPO":
        own |= {"use_kl_loss": False, "minibatch_size": None, "num_epochs": 4, "clip_param": clip}
        given |= {"batch_size": 32, "n_epochs": 4, "clip_range": clip}
    else:
        given |= {"use_rms_prop": False}
    model = {"fcnet_hiddens": [8], "free_log_std": kind == "box"}
    spec = spec_of(SPACES[kind])
    actors = actors_of({"PPO": PPO, "A2C": A2C}[name], spec, model, **own)
    theirs = getattr(sb3, name)(
        spec, batch_env_steps=20, total_timesteps=10**9, normalize_advantage=False,
        policy_kwargs={"net_arch": [8], "optimizer_kwargs": {"eps": 1e-5}}, **given,
    )  # fmt: skip
    trainer, policy = actors.learners["p"], theirs._model.policy
    if name == "PPO":
        trainer.settings.standardize_advantages = False
    net, between = trainer.net, policy.mlp_extractor
    pairs: dict[str, tuple[Any, Any]] = {
        "actor": (net.actor, between.policy_net), "pi": (net.pi, policy.action_net),
        "critic": (net.critic, between.value_net), "vf": (net.vf, policy.value_net),
    }  # fmt: skip
    if kind == "box":
        pairs["log_std"] = nn.ParameterList([net.log_std]), nn.ParameterList([policy.log_std])
    begin_alike(pairs)
    actors.publish()
    rng = np.random.default_rng(0)
    pieces = batch_of(actors, rng, reward=lambda seen, _: float(seen[0]))
    of_theirs = []
    for one in pieces:
        with torch.no_grad():
            seen, acted = map(torch.from_numpy, (one.observations[:-1], one.actions))
            values, log_probs, _ = policy.evaluate_actions(seen, acted)
        outputs = {"value": values[:, 0].numpy(), "log_prob": log_probs.numpy()}
        of_theirs.append(replace(one, outputs=outputs))
    trainer.learn(pieces)
    metrics = theirs.learn(of_theirs)
    assert_same(pairs)
    assert name == "A2C" or metrics["clip_fraction"] > 0.1


def drawn(space: Any, seed: int) -> tuple[dict[str, Any], ReplayBufferSamples]:
    """Returns one batch for muxrl and for Stable-Baselines3, with a terminated row and a two-step
    return."""
    torch.manual_seed(seed)
    batch = without_masks(make_batch(some_masks(), some_masks()))
    batch |= {"weights": torch.ones(ROWS), "rewards": 0.1 * batch["rewards"]}
    if space is BOX:
        batch["actions"] = 2.0 * torch.rand(ROWS, 2) - 1.0
    column = {key: one.reshape(ROWS, -1) for key, one in batch.items()}
    return batch, ReplayBufferSamples(
        column["obs"], column["actions"], column["new_obs"], column["terminateds"],
        column["rewards"], GAMMA ** column["n_step"],
    )  # fmt: skip


def train(theirs: Any, batch: ReplayBufferSamples) -> None:
    theirs._model.replay_buffer.sample = lambda *_, **__: batch
    theirs._model.train(gradient_steps=1)


def test_dqn_learns_as_stable_baselines3_s() -> None:
    """Makes two updates, after each of which the target network moves by 0.3.

    Stable-Baselines3 lacks double Q and dueling heads, and has Huber's loss.
    """
    spec = spec_of(SPACES["discrete"].__class__(4), (3,))
    trainer = make(
        DQN, spec, {"fcnet_hiddens": [8]}, lr=0.01, gamma=GAMMA, grad_clip=0.5, tau=0.3,
        target_network_update_freq=0, double_q=False, dueling=False, td_error_loss_fn="huber",
    )  # fmt: skip
    theirs = sb3.DQN(
        spec, batch_env_steps=1, total_timesteps=10**9, learning_rate=0.01, gamma=GAMMA,
        max_grad_norm=0.5, tau=0.3, target_update_interval=1, policy_kwargs={"net_arch": [8]},
    )  # fmt: skip
    ours, model = trainer.net, theirs._model
    pairs, targets = (
        {"encoder": (one.encoder, other.q_net[:2]), "head": (one.advantage, other.q_net[2])}
        for one, other in ((ours.online, model.q_net), (ours.target, model.q_net_target))
    )
    begin_alike({"first": (ours, nn.ModuleList([model.q_net, model.q_net_target]))})
    for seed in range(2):
        batch, of_theirs = drawn(None, seed)
        trainer.update_on(batch)
        train(theirs, of_theirs)
        model._on_step()
        assert_same(pairs)
        assert_same(targets, has_gradient=False)


class _Half(nn.Module):
    """One of the two halves of a layer's output."""

    def __init__(self, layer: nn.Module, which: int) -> None:
        super().__init__()
        self.layer, self.which = layer, which

    def forward(self, features: Tensor) -> Tensor:
        half: Tensor = self.layer(features).chunk(2, -1)[self.which]
        return half


class _OfBoth(nn.Module):
    """One of muxrl's critics, which takes observation and action side by side."""

    def __init__(self, critic: Any) -> None:
        super().__init__()
        self.critic = critic

    def forward(self, both: Tensor) -> Tensor:
        obs, actions = both.split([3, 2], -1)
        values: Tensor = self.critic(self.critic.encoder(obs), actions)
        return values.unsqueeze(-1)


def test_sac_learns_as_stable_baselines3_s() -> None:
    """Both learn the same in a Box, with copies of muxrl's networks in Stable-Baselines3's trainer.

    Half the squared error equals Huber's loss for errors below 1, and small values have such
    errors. Stable-Baselines3's actor learns from critics that have already learned from the batch,
    muxrl's from critics that have not: so a second muxrl trainer is given the updated critics.
    """
    spec, lr = spec_of(BOX, (3,)), 0.01
    trainer = make(
        SAC, spec, {"fcnet_hiddens": [8], "fusionnet_hiddens": [8]}, gamma=GAMMA, tau=0.3,
        initial_alpha=0.1, actor_lr=lr, critic_lr=lr, alpha_lr=lr,
    )  # fmt: skip
    theirs = sb3.SAC(
        spec, batch_env_steps=1, total_timesteps=10**9, learning_rate=lr, gamma=GAMMA, tau=0.3,
        ent_coef="auto_0.1",
    )  # fmt: skip
    net, model = trainer.net, theirs._model
    actor, pi = copy.deepcopy(net.actor.layers), copy.deepcopy(net.pi)
    model.actor.latent_pi, model.actor.mu, model.actor.log_std = actor, _Half(pi, 0), _Half(pi, 1)
    for one, own in ((model.critic, net.critics), (model.critic_target, net.targets)):
        one.qf0, one.qf1 = one.q_networks = [_OfBoth(copy.deepcopy(critic)) for critic in own]
    for one in (model.actor, model.critic):
        one.optimizer = torch.optim.Adam(one.parameters(), lr=lr, eps=1e-7)
    critics: Pairs = {"critics": (net.critics, model.critic)}
    targets: Pairs = {"targets": (net.targets, model.critic_target)}
    begin_alike({"actor": (net.actor, actor), "pi": (net.pi, pi), **critics, **targets}, 0.05)
    other, (batch, of_theirs) = copy.deepcopy(trainer), drawn(BOX, 0)
    torch.manual_seed(2)
    noise = torch.stack([torch.randn(ROWS, 2) for _ in range(2)]).numpy()
    trainer.rng = other.rng = Given(noise)
    torch.manual_seed(2)
    train(theirs, of_theirs)
    trainer.update_on(batch)
    # Stable-Baselines3 has added the actor's gradients since.
    assert_same(critics, has_gradient=False)
    for _, one, own in tensors_of(critics):
        first_moment = model.critic.optimizer.state[own]["exp_avg"]
        torch.testing.assert_close(0.1 * one.grad, first_moment, rtol=1e-4, atol=1e-7)
    assert_same(targets, has_gradient=False)
    assert trainer.temperature.log.item() == pytest.approx(model.log_ent_coef.item(), rel=1e-5)
    other.net.critics.load_state_dict(net.critics.state_dict())
    other.update_on(batch)
    assert_same({"actor": (other.net.actor, actor), "pi": (other.net.pi, pi)})
