"""Targets, loss, updates and state of QMIX, VDN, QPLEX and IQL, without an environment."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from tests.servers.algorithms.qmix.pieces import GAMMA, make, play, sample_all, tensors_of, update

from muxrl.servers.agents.keys import ALIVE, OBS
from muxrl.servers.algorithms.columns import ACTIONS, LOSS_MASK, REWARDS, TERMINATEDS
from muxrl.servers.algorithms.qmix.mixers import DuplexMixer, Mixer, NoMixer
from muxrl.servers.algorithms.qmix.trainer import (
    IQL,
    QMIX,
    QPLEX,
    VDN,
    td_terms,
)
from muxrl.servers.algorithms.replay.replay import WEIGHTS
from muxrl.servers.algorithms.settings.teams import QMIXSettings
from muxrl.servers.episodes.trajectories import Trajectory

# Targets and loss.


def hand_made(mask_b: tuple[int, int] = (1, 1)) -> dict[str, Any]:
    """Returns a batch of two members, two actions and two steps with the rewards 1 and 2.

    The mask of the last observation is restricted.
    """
    masks = torch.ones(1, 3, 2, 2)
    masks[0, 2, 1] = torch.tensor(mask_b)
    return {
        OBS: {"action_mask": masks, "alive": torch.ones(1, 3, 2), "state": torch.zeros(1, 3, 1)},
        ACTIONS: torch.tensor([[[0, 1], [1, 0]]]),
        REWARDS: torch.tensor([[1.0, 2.0]]),
        TERMINATEDS: torch.zeros(1, 2),
        LOSS_MASK: torch.ones(1, 2),
    }


#                        t = 0: a, b           t = 1: a, b           t = 2: a, b
ONLINE = torch.tensor([[[[1.0, 2], [3, 4]], [[5, 6], [7, 8]], [[9, 1], [2, 3]]]])
TARGET = torch.tensor([[[[0.0, 0], [0, 0]], [[10, 20], [40, 30]], [[50, 60], [70, 80]]]])


class _OfAdvantages:
    """A mixer that shows its inputs: it returns the sum of ``1000 best + 100 u + q``."""

    mixes_advantages, is_joint = True, True

    def __call__(self, q: Any, state: Any, alive: Any, best: Any, actions: Any) -> Any:
        assert not best.requires_grad
        return ((1000 * best + 100 * actions + q) * alive).sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("mask_b", "double_q", "expected"),
    [
        # At t=1 the online network chooses a:0 (50) and b:1 (80); the target network's own best are
        # 60 and 80.
        ((1, 1), True, 1000 * 140 + 100 * 1 + 130),
        ((1, 1), False, 1000 * 140 + 100 * 2 + 140),
        # Member b may only take action 0, so that its value of 70 is b's best.
        ((1, 0), True, 1000 * 130 + 100 * 0 + 120),
    ],
)
def test_the_greedy_values_and_the_actions_reach_a_mixer_of_advantages(
    mask_b: tuple[int, int], double_q: bool, expected: float
) -> None:
    online, mixer = ONLINE.clone().requires_grad_(), cast(Mixer, _OfAdvantages())
    own = QMIXSettings(gamma=GAMMA, double_q=double_q)
    q_taken, target = td_terms((mixer, mixer), online, TARGET, hand_made(mask_b), own)
    # At t=0: 1 + 4 taken, 2 + 4 at best, actions 0 + 1. At t=1: 6 + 7, 6 + 8, 1 + 0.
    assert q_taken[..., 0].tolist() == [[6000 + 100 + 5, 14_000 + 100 + 13]]
    assert target[0, 1, 0].item() == pytest.approx(2 + GAMMA * expected)


def test_without_a_mixer_absent_members_are_credited_with_the_teams_rewards() -> None:
    batch = hand_made()
    batch[OBS]["alive"][0, 1, 1] = 0.0  # b does not act at t=1, but again at t=2
    own, mixers = QMIXSettings(gamma=GAMMA), (NoMixer(), NoMixer())
    q_taken, target = td_terms(mixers, ONLINE, TARGET, batch, own)
    assert q_taken.tolist() == [[[1, 4], [6, 0]]]
    # Member a: 20, then 50. Member b: 2, then 80; its entry at t=1 is no action of b and not in the
    # loss.
    assert target[0, 0].tolist() == pytest.approx([1 + GAMMA * 20, 1 + GAMMA * (2 + GAMMA * 80)])
    assert target[0, 1, 0].item() == pytest.approx(2 + GAMMA * 50)


def terms_of(trainer: QMIX, tensors: dict[str, Any]) -> Any:
    net = trainer.net
    inputs = net.agent.inputs_of(tensors[OBS])
    values, target_values = net.agent.values(inputs), net.target_agent.values(inputs)
    mixers = net.mixer, net.target_mixer
    return td_terms(mixers, values, target_values, tensors, trainer.settings)


@pytest.mark.parametrize("returns", [{}, {"n_step": 3}, {"td_lambda": 0.6}], ids=str)
@pytest.mark.parametrize("mixer", ["qmix", "vdn", "qplex", "none"])
def test_loss_and_priorities_are_those_of_a_loop_over_steps(
    mixer: str, returns: dict[str, Any]
) -> None:
    eta = 0.75
    trainer = make(mixer=mixer, prioritized_replay_eta=eta, **returns)
    lengths, weights = [2, 5, 1], [1.0, 0.25, 0.6]
    batch = sample_all(*(play(length, i) for i, length in enumerate(lengths)))
    if mixer == "none":
        batch["obs"][ALIVE][1, 2, 0] = 0.0  # an absent member has no error
    tensors = tensors_of(drawn_by_priority(batch, weights))
    q_taken, target = terms_of(trainer, tensors)
    total, num_terms, expected = 0.0, 0, []
    for b, length in enumerate(lengths):
        sizes = []
        for t in range(length):
            for k in range(q_taken.shape[-1]):
                if mixer == "none" and batch["obs"][ALIVE][b, t, k] == 0.0:
                    continue
                error = (q_taken - target)[b, t, k].item()
                total += weights[b] * error**2
                num_terms += 1
                sizes.append(abs(error))
        expected.append(eta * max(sizes) + (1 - eta) * sum(sizes) / len(sizes))
    loss, _, priorities = trainer.loss(tensors)
    assert loss.item() == pytest.approx(total / num_terms, rel=1e-5)
    assert priorities is not None
    np.testing.assert_allclose(priorities, expected, rtol=1e-5)


def drawn_by_priority(batch: dict[str, Any], weights: list[float]) -> dict[str, Any]:
    return batch | {"rows": np.arange(len(weights)), WEIGHTS: np.array(weights, np.float32)}


def test_weights_scale_the_loss_and_not_the_errors() -> None:
    batch = sample_all(play(2, seed=0), play(3, seed=1))
    plain, alike, halved = (
        update(make(), drawn_by_priority(batch, weights) if weights else batch)
        for weights in ([], [1.0, 1.0], [0.5, 0.5])
    )
    assert (alike["loss"], alike["grad_norm"]) == (plain["loss"], plain["grad_norm"])
    assert halved["loss"] == pytest.approx(plain["loss"] / 2)
    assert halved["td_error_abs"] == plain["td_error_abs"]  # errors say how well the values fit
    assert set(alike) - set(plain) == {"importance_weight_mean", "priority_max"}
    assert halved["importance_weight_mean"] == 0.5
    assert halved["priority_max"] == alike["priority_max"] > 0.0


# An update.


def test_metrics_show_the_rewards_that_the_loss_saw() -> None:
    metrics = update(make(), sample_all(play(2, seed=0), play(3, 1)))
    assert metrics["reward_sum_mean"] == pytest.approx((1 + 2 + 101 + 102 + 103) / 2)
    assert metrics["num_module_steps_trained"] == 5
    for key in ("td_error_abs", "q_taken_mean", "target_mean", "grad_norm"):
        assert math.isfinite(metrics[key]), key
    assert metrics["loss"] == metrics["total_loss"] > 0
    assert metrics["default_optimizer_learning_rate"] == 5e-4
    assert metrics["epsilon"] == 1.0


def test_targets_are_copied_every_so_many_updates() -> None:
    trainer, batch = make(target_update_freq=3), sample_all(play(3))
    net = trainer.net
    for num_updates in range(1, 7):
        assert update(trainer, batch)["num_target_updates"] == num_updates // 3
        for main, target in ((net.agent, net.target_agent), (net.mixer, net.target_mixer)):
            pairs = zip(main.parameters(), target.parameters(), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs) == (num_updates % 3 == 0)
            assert not any(p.requires_grad for p in target.parameters())


@pytest.mark.parametrize("mixer", ["qmix", "qplex"])
def test_targets_follow_softly_below_tau_one(mixer: str) -> None:
    trainer = make(tau=0.25, mixer=mixer)
    agent, target = trainer.net.agent, trainer.net.target_agent
    old = target.fc_out.weight.clone()
    update(trainer, sample_all(play(3)))
    expected = 0.25 * agent.fc_out.weight + 0.75 * old
    torch.testing.assert_close(target.fc_out.weight, expected.detach())


@pytest.mark.parametrize("optimizer_name", ["rmsprop", "adam"])
@pytest.mark.parametrize("lr", [1e-3, [(0, 1e-3), (100, 5e-4)]])
def test_importance_weights_can_learn_at_a_rate_of_their_own(optimizer_name: str, lr: Any) -> None:
    trainer = make(cls=QPLEX, optimizer_name=optimizer_name, lr=lr, importance_lr_factor=30.0)
    net, batch = trainer.net, sample_all(play(3), play(2, seed=1))
    assert isinstance(net.mixer, DuplexMixer)
    before = [p.detach().clone() for p in net.parameters() if p.requires_grad]
    metrics = update(trainer, batch)
    after = [p for p in net.parameters() if p.requires_grad]
    assert not any(map(torch.equal, before, after))
    assert metrics["members_grad_norm"] > 0
    assert metrics["importance_grad_norm"] > 0
    assert metrics["members_learning_rate"] == pytest.approx(1e-3)
    assert metrics["importance_learning_rate"] == pytest.approx(30e-3)
    if not isinstance(lr, float):
        trainer.env_steps = 50
        trainer.begin_learning()
        metrics = update(trainer, batch)
        assert metrics["members_learning_rate"] == pytest.approx(7.5e-4)
        assert metrics["importance_learning_rate"] == pytest.approx(22.5e-3)


@pytest.mark.parametrize("settings", [{}, {"mixer": "qmix", "importance_lr_factor": 30.0}])
def test_without_a_factor_or_importance_weights_all_parameters_learn_at_one_rate(
    settings: Any,
) -> None:
    trainer = make(**({"mixer": "qplex"} | settings))
    assert len(trainer.steps[""].optimizer.param_groups) == 1


# Which updates are due.


def short_episodes(num: int, first: int = 0) -> list[Trajectory]:
    return [play(2, seed) for seed in range(first, first + num)]


def test_qmix_waits_for_enough_episodes_and_then_updates_at_the_given_rate() -> None:
    trainer = make(num_episodes_before_learning=10, updates_per_episode=0.3)
    assert trainer.learn(short_episodes(9)) == {"num_updates": 0, "num_episodes_stored": 9}
    # The 10th to the 19th episode bring 3 updates.
    metrics = trainer.learn(short_episodes(10, 9))
    assert (metrics["num_updates"], metrics["num_episodes_stored"]) == (3, 19)
    # A batch that brings no update repeats the last record.
    assert trainer.learn([]) == metrics


def test_several_updates_per_episode() -> None:
    trainer = make(num_episodes_before_learning=2, updates_per_episode=2.5)
    progress: list[float] = []
    trainer.note_progress = progress.append
    assert trainer.learn(short_episodes(3))["num_updates"] == 5  # for episodes 2 and 3
    assert progress == [0.2, 0.4, 0.6, 0.8, 1.0]


@pytest.mark.parametrize(
    ("more", "shift", "scale"),
    [
        ({}, 0.0, 0.0),
        ({"standardize_rewards": True}, 0.0, 1.0),
        ({"standardize_rewards": True, "center_rewards": True}, 1.0, 1.0),
    ],
    ids=["raw", "scaled", "centred"],
)
def test_rewards_are_standardised_by_running_statistics(
    more: dict[str, bool], shift: float, scale: float
) -> None:
    trainer = make(num_episodes_before_learning=20, batch_size_episodes=50, **more)
    trainer.learn(short_episodes(10))
    metrics = trainer.learn(short_episodes(10, 10))
    rewards = trainer.replay.sample(50)["rewards"]
    assert rewards.std() > 1.5
    expected = (rewards - shift * rewards.mean()).sum(1).mean() / rewards.std() ** scale
    assert metrics["reward_sum_mean"] == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("mixer", ["qmix", "none"])
def test_an_update_sets_the_priorities_of_what_it_learned_from(mixer: str) -> None:
    settings = {"num_episodes_before_learning": 6, "batch_size_episodes": 3, "mixer": mixer}
    trainer = make(**settings, prioritized_replay_alpha=0.6)
    trainer.learn(short_episodes(5))
    assert trainer.replay.get_state()["priorities"]["values"].tolist() == [1.0] * 5
    metrics = trainer.learn(short_episodes(1, 5))
    state = trainer.replay.get_state()["priorities"]
    assert len(set(state["values"].tolist()) - {1.0}) >= 1
    assert state["highest"] == state["values"].max() == metrics["priority_max"]
    assert 0.0 < metrics["importance_weight_mean"] <= 1.0


# Config.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"center_rewards": True}, "it is a part of standardize_rewards, so set that"),
        ({"updates_per_episode": 0.0}, "must be above 0"),
        (
            {"buffer_capacity_episodes": 10, "num_episodes_before_learning": 11},
            "learning would not begin",
        ),
        ({"importance_lr_factor": 0.0}, "importance_lr_factor=0.0 must be above 0"),
        ({"td_lambda": 1.5}, r"td_lambda=1.5 must lie in \[0, 1\]"),
        ({"td_lambda": 0.6, "n_step": 3}, "n_step=3 and td_lambda=0.6: a target is an n-step or a"),
        ({"prioritized_replay_eta": float("nan")}, r"prioritized_replay_eta=nan must lie in"),
    ],
)
def test_invalid_settings_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        QMIXSettings(**settings).validate()


# The budget.


def test_the_first_update_and_the_first_copy_are_foreseen() -> None:
    own = {"num_episodes_before_learning": 10, "updates_per_episode": 0.25}
    first, copy = QMIXSettings(**own, target_update_freq=8).find_milestones()
    assert (first.episodes, copy.episodes) == (13, 41)
    trainer = make(**own, target_update_freq=8)
    assert trainer.learn(short_episodes(12))["num_updates"] == 0
    assert trainer.learn(short_episodes(1, 12))["num_updates"] == 1
    assert trainer.learn(short_episodes(27, 13))["num_target_updates"] == 0
    assert trainer.learn(short_episodes(1, 40))["num_target_updates"] == 1
    (only,) = QMIXSettings(**own, tau=0.1).find_milestones()
    assert only == first


def test_only_iql_s_members_learn_apart() -> None:
    apart = [cls for cls in (QMIX, VDN, QPLEX, IQL) if not make(cls=cls).settings.learns_jointly()]
    assert apart == [IQL]
