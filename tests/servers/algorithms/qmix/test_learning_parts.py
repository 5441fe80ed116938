"""Replay, loss and state of QMIX, without an environment."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from tests.servers.algorithms.qmix.pieces import (
    GAMMA,
    make_learner,
    play,
    sample_all,
    tensors_of,
    update,
)

from muxrl.servers.algorithms.qmix import QMIXConfig, TeamSpec
from muxrl.servers.algorithms.qmix.learner import td_terms
from muxrl.servers.algorithms.qmix.rl_module import Q_VALUES
from muxrl.servers.algorithms.replay.episodes import EpisodeReplay
from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.gymnasium_spaces import spaces_of
from muxrl.servers.rllib.episodes import trajectory_of

# Replay.


def test_replayed_episodes_are_those_added_and_padded(team_of_two: TeamSpec) -> None:
    long, short = play(team_of_two, 4, seed=1), play(team_of_two, 2, seed=0, terminated=False)
    batch = sample_all(long, short)
    assert batch["rewards"].tolist() == [[1, 2, 0, 0], [101, 102, 103, 104]]
    assert batch["terminateds"].tolist() == [[0, 0, 0, 0], [0, 0, 0, 1]]
    assert batch["loss_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert batch["actions"].shape == (2, 4, 2)
    assert batch["actions"].dtype == np.int64
    np.testing.assert_array_equal(batch["actions"][1], [[0, 3], [1, 3], [0, 3], [1, 3]])
    for key, space in spaces_of(team_of_two)[0].items():
        assert batch["obs"][key].dtype == np.float32
        assert batch["obs"][key].shape == (2, 5, *space.shape)  # type: ignore[misc]
        np.testing.assert_array_equal(batch["obs"][key][1], long.observations[key])
        np.testing.assert_array_equal(batch["obs"][key][0, :3], short.observations[key])
        assert not batch["obs"][key][0, 3:].any()


def test_a_full_replay_replaces_the_oldest_and_clears_its_row(team_of_two: TeamSpec) -> None:
    replay = EpisodeReplay(2, seed=0)
    for seed, length in enumerate([5, 3, 2, 7]):
        assert replay.add(play(team_of_two, length, seed))
    assert len(replay) == 2
    batch = replay.sample(10)
    assert sorted(batch["rewards"][:, 0].tolist()) == [201, 301]
    short = batch["rewards"][:, 0].argmin()
    assert batch["rewards"][short].tolist() == [201, 202, 0, 0, 0, 0, 0]
    assert not batch["obs"]["obs"][short, 3:].any()
    assert not batch["actions"][short, 2:].any()
    assert batch["terminateds"].sum(1).tolist() == [1, 1]


@pytest.mark.parametrize("num_episodes", [0, 3, 4, 9])
def test_a_restored_replay_draws_and_replaces_as_the_first_would(
    team_of_two: TeamSpec, num_episodes: int
) -> None:
    first, second = EpisodeReplay(4, seed=0), EpisodeReplay(4, seed=99)
    for seed in range(num_episodes):
        first.add(play(team_of_two, 1 + seed % 5, seed))
    second.set_state(first.get_state())
    assert second.num_bytes == first.num_bytes
    for seed in range(10, 16):
        for replay in (first, second):
            replay.add(play(team_of_two, 1 + seed % 7, seed))
        one, other = first.sample(3), second.sample(3)
        for name in ("actions", "rewards", "terminateds", "loss_mask"):
            np.testing.assert_array_equal(one[name], other[name])
        for key in one["obs"]:
            np.testing.assert_array_equal(one["obs"][key], other["obs"][key])


def test_a_replay_goes_on_in_a_larger_one_and_not_in_a_smaller_one(team_of_two: TeamSpec) -> None:
    replay, larger = EpisodeReplay(3, seed=0), EpisodeReplay(5, seed=0)
    for seed in range(7):
        replay.add(play(team_of_two, 2, seed))
    larger.set_state(replay.get_state())
    for seed in (7, 8, 9):
        larger.add(play(team_of_two, 2, seed))
    # The first two were added, the third took the place of one of the three.
    begins = larger.sample(9)["rewards"][:, 0].tolist()
    assert len(begins) == 5
    assert {701, 801, 901} <= set(begins)
    with pytest.raises(ValueError, match=r"3 episodes were kept, and the replay now holds 2"):
        EpisodeReplay(2).set_state(replay.get_state())


def test_samples_are_distinct_and_as_long_as_the_longest(team_of_two: TeamSpec) -> None:
    replay = EpisodeReplay(100, seed=0)
    for seed in range(20):
        replay.add(play(team_of_two, 1 + seed % 3, seed))
    replay.add(play(team_of_two, 30, 20))
    for _ in range(20):
        batch = replay.sample(8)
        assert len(set(batch["rewards"][:, 0].tolist())) == 8
        assert batch["loss_mask"][:, -1].any(), "padded to a longer episode than any of the batch"


def test_empty_episodes_are_not_stored_and_an_empty_replay_cannot_be_sampled() -> None:
    replay = EpisodeReplay(2)
    assert not replay.add(Trajectory("a", "e", "a", "p", [np.zeros(1)], [], [], {}))
    with pytest.raises(ValueError, match="the replay is empty"):
        replay.sample(1)


def test_rewards_of_a_multi_agent_episode_stay_with_their_step(team_of_two: TeamSpec) -> None:
    """Old RLlib's QMIX trained on zero rewards. Here each stands beside the action it followed."""
    observed, acted = spaces_of(team_of_two)
    episode = MultiAgentEpisode(
        observation_space={"t": observed},
        action_space={"t": acted},
        agent_to_module_mapping_fn=lambda *args, **kwargs: "team",
    )
    seen = team_of_two.observe({"a": np.ones(3)})
    episode.add_env_reset(observations={"t": seen})
    for t in range(3):
        episode.add_env_step(
            {"t": seen},
            {"t": np.array([t % 2, 0])},
            {"t": 10.0 * (t + 1)},
            terminateds={"__all__": t == 2},
        )
    (agent_episode,) = episode.to_numpy().agent_episodes.values()
    batch = sample_all(trajectory_of(agent_episode))
    assert batch["rewards"].tolist() == [[10, 20, 30]]
    assert batch["actions"][0, :, 0].tolist() == [0, 1, 0]
    assert batch["terminateds"].tolist() == [[0, 0, 1]]


# Targets and loss.


class _SumModule:
    """Mixes like VDN, so that targets can be computed by hand."""

    mixes_advantages = False

    def mix(self, q: Any, state: Any, alive: Any) -> Any:
        return (q * alive).sum(-1, keepdim=True)

    mix_target = mix


def hand_made(
    terminated: bool, mask_b: tuple[int, int] = (1, 1), alive_b: float = 1.0
) -> dict[str, Any]:
    """Two members, two actions, two steps; rewards 1 and 2; the last observation restricted."""
    masks = torch.ones(1, 3, 2, 2)
    masks[0, 2, 1] = torch.tensor(mask_b)
    alive = torch.ones(1, 3, 2)
    alive[0, 2, 1] = alive_b
    return {
        Columns.OBS: {"action_mask": masks, "alive": alive, "state": torch.zeros(1, 3, 1)},
        Columns.ACTIONS: torch.tensor([[[0, 1], [1, 0]]]),
        Columns.REWARDS: torch.tensor([[1.0, 2.0]]),
        Columns.TERMINATEDS: torch.tensor([[0.0, float(terminated)]]),
        Columns.LOSS_MASK: torch.ones(1, 2),
    }


#                        t = 0: a, b           t = 1: a, b           t = 2: a, b
ONLINE = torch.tensor([[[[1.0, 2], [3, 4]], [[5, 6], [7, 8]], [[9, 1], [2, 3]]]])
TARGET = torch.tensor([[[[0.0, 0], [0, 0]], [[10, 20], [40, 30]], [[50, 60], [70, 80]]]])


@pytest.mark.parametrize(
    ("batch", "double_q", "expected"),
    [
        # t=0: online prefers a:1 (20), b:1 (30). t=1 ends.
        (hand_made(terminated=True), True, [1 + GAMMA * 50, 2]),
        # A time limit: t=1 goes on with online's a:0 (50), b:1 (80).
        (hand_made(terminated=False), True, [1 + GAMMA * 50, 2 + GAMMA * 130]),
        # Without double Q the target chooses itself: a:1 (20), b:0 (40); a:1 (60), b:1 (80).
        (hand_made(terminated=False), False, [1 + GAMMA * 60, 2 + GAMMA * 140]),
        # b may do only 0 at the end: 70, whoever chooses.
        (hand_made(False, mask_b=(1, 0)), True, [1 + GAMMA * 50, 2 + GAMMA * 120]),
        (hand_made(False, mask_b=(1, 0)), False, [1 + GAMMA * 60, 2 + GAMMA * 130]),
        # b is dead at the end and counts 0.
        (hand_made(False, mask_b=(1, 0), alive_b=0.0), True, [1 + GAMMA * 50, 2 + GAMMA * 50]),
    ],
)
def test_td_targets_in_closed_form(batch: Any, double_q: bool, expected: list[float]) -> None:
    q_taken, target = td_terms(
        _SumModule(),  # type: ignore[arg-type]
        ONLINE,
        TARGET,
        batch,
        gamma=GAMMA,
        double_q=double_q,
    )
    assert q_taken[..., 0].tolist() == [[1 + 4, 6 + 7]]
    assert target[..., 0].tolist() == [pytest.approx(expected)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # t=0 reaches t=1's target.
        ({"n_step": 2}, [1 + GAMMA * (2 + GAMMA * 130), 2 + GAMMA * 130]),
        ({"n_step": 9}, [1 + GAMMA * (2 + GAMMA * 130), 2 + GAMMA * 130]),
        ({"td_lambda": 0.5}, [1 + GAMMA * (25 + 0.5 * (2 + GAMMA * 130)), 2 + GAMMA * 130]),
    ],
)
def test_longer_targets_in_closed_form(settings: Any, expected: list[float]) -> None:
    _, target = td_terms(
        _SumModule(),  # type: ignore[arg-type]
        ONLINE,
        TARGET,
        hand_made(terminated=False),
        gamma=GAMMA,
        double_q=True,
        **settings,
    )
    assert target[..., 0].tolist() == [pytest.approx(expected)]


class _DuplexModule(_SumModule):
    """Shows what a mixer that mixes advantages is given: the sum of ``1000 best + 100 u + q``."""

    mixes_advantages = True

    def mix(self, q: Any, state: Any, alive: Any, best: Any, actions: Any) -> Any:
        assert not best.requires_grad
        return super().mix(1000 * best + 100 * actions + q, state, alive)

    mix_target = mix


@pytest.mark.parametrize(
    ("mask_b", "double_q", "expected"),
    [
        # t=1: online's choice a:0 (50), b:1 (80) beside the target network's own best: 60 and 80.
        ((1, 1), True, 1000 * 140 + 100 * 1 + 130),
        ((1, 1), False, 1000 * 140 + 100 * 2 + 140),
        # b may do only 0, whose 70 is its best then.
        ((1, 0), True, 1000 * 130 + 100 * 0 + 120),
    ],
)
def test_the_greedy_values_and_the_actions_reach_a_mixer_of_advantages(
    mask_b: tuple[int, int], double_q: bool, expected: float
) -> None:
    online = ONLINE.clone().requires_grad_()
    q_taken, target = td_terms(
        _DuplexModule(),  # type: ignore[arg-type]
        online,
        TARGET,
        hand_made(terminated=False, mask_b=mask_b),
        gamma=GAMMA,
        double_q=double_q,
    )
    # t=0: 1 + 4 taken, 2 + 4 at best, actions 0 + 1; t=1: 6 + 7, 6 + 8, 1 + 0.
    assert q_taken[..., 0].tolist() == [[6000 + 100 + 5, 14_000 + 100 + 13]]
    assert target[0, 1, 0].item() == pytest.approx(2 + GAMMA * expected)


class _NoMixModule:
    """Does not mix the members' values."""

    mixes_advantages = False

    def mix(self, q: Any, state: Any, alive: Any) -> Any:
        return q * alive

    mix_target = mix


def test_without_a_mixer_absent_members_are_credited_with_the_teams_rewards() -> None:
    batch = hand_made(terminated=False)
    batch[Columns.OBS]["alive"][0, 1, 1] = 0.0  # b is not asked at t=1, but again at t=2
    q_taken, target = td_terms(
        _NoMixModule(),  # type: ignore[arg-type]
        ONLINE,
        TARGET,
        batch,
        gamma=GAMMA,
        double_q=True,
        is_mixed=False,
    )
    assert q_taken.tolist() == [[[1, 4], [6, 0]]]
    # a: 20, then 50. b: 2 and then 80; what stands at t=1 is not b's and is not in the loss.
    assert target[0, 0].tolist() == pytest.approx([1 + GAMMA * 20, 1 + GAMMA * (2 + GAMMA * 80)])
    assert target[0, 1, 0].item() == pytest.approx(2 + GAMMA * 50)


@pytest.mark.parametrize("returns", [{}, {"n_step": 3}, {"td_lambda": 0.6}], ids=str)
@pytest.mark.parametrize("mixer", ["qmix", "vdn", "qplex", "none"])
def test_the_loss_is_the_masked_mean_square(
    team_of_two: TeamSpec, mixer: str, returns: dict[str, Any]
) -> None:
    learner = make_learner(team_of_two, mixer=mixer, **returns)
    module = learner.module["team"]
    # A longer episode beside it must change nothing but the mean.
    short, long = play(team_of_two, 2, seed=0), play(team_of_two, 5, seed=1)

    def loss_and_errors(batch: dict[str, Any]) -> tuple[float, float]:
        tensors = tensors_of(batch)
        values = module.forward_train(tensors)
        target = module.forward_target(tensors)[Q_VALUES]
        q_taken, y = td_terms(
            module,
            values[Q_VALUES],
            target,
            tensors,
            gamma=GAMMA,
            double_q=True,
            is_mixed=mixer != "none",
            **returns,
        )
        loss = learner.compute_loss_for_module(
            module_id="team",
            config=learner.config.get_config_for_module("team"),
            batch=tensors,
            fwd_out=values,
        )
        valid = torch.from_numpy(batch["loss_mask"]).bool()
        return loss.item(), (q_taken - y)[valid].square().sum().item()

    loss_short, sum_short = loss_and_errors(sample_all(short))
    loss_long, sum_long = loss_and_errors(sample_all(long))
    loss_both, sum_both = loss_and_errors(sample_all(short, long))
    width = 2 if mixer == "none" else 1
    assert loss_short == pytest.approx(sum_short / 2 / width, rel=1e-5)
    assert loss_long == pytest.approx(sum_long / 5 / width, rel=1e-5)
    assert sum_both == pytest.approx(sum_short + sum_long, rel=1e-5)
    assert loss_both == pytest.approx(sum_both / 7 / width, rel=1e-5)


def test_metrics_show_the_rewards_that_the_loss_saw(team_of_two: TeamSpec) -> None:
    learner = make_learner(team_of_two)
    metrics = update(learner, sample_all(play(team_of_two, 2, seed=0), play(team_of_two, 3, 1)))
    assert metrics["reward_sum_mean"] == pytest.approx((1 + 2 + 101 + 102 + 103) / 2)
    assert metrics["num_module_steps_trained"] == 5
    assert metrics["num_updates"] == 1
    for key in ("loss", "td_error_abs", "q_taken_mean", "target_mean", "grad_norm"):
        assert math.isfinite(metrics[key]), key
    assert metrics["loss"] > 0


def test_gradients_are_clipped_by_their_global_norm(team_of_two: TeamSpec) -> None:
    learner = make_learner(team_of_two, grad_clip=0.5)
    metrics = update(learner, sample_all(play(team_of_two, 3, seed=9)))
    assert metrics["grad_norm"] > 0.5
    norm = torch.nn.utils.get_total_norm(
        [p.grad for p in learner.module["team"].parameters() if p.grad is not None]
    )
    assert norm.item() == pytest.approx(0.5, rel=1e-4)


def test_a_batch_with_nan_changes_nothing(team_of_two: TeamSpec) -> None:
    learner = make_learner(team_of_two)
    before = learner.module.get_state()
    batch = sample_all(play(team_of_two, 3))
    batch["rewards"][0, 1] = np.nan
    update(learner, batch)
    _assert_same(learner.module.get_state(), before)


def test_targets_are_copied_every_so_many_updates(team_of_two: TeamSpec) -> None:
    learner = make_learner(team_of_two, target_update_freq=3)
    module, batch = learner.module["team"], sample_all(play(team_of_two, 3))
    pairs = module.get_target_network_pairs()
    for num_updates in range(1, 7):
        update(learner, batch)
        for main, target in pairs:
            same = all(
                torch.equal(a, b)
                for a, b in zip(main.parameters(), target.parameters(), strict=True)
            )
            assert same == (num_updates % 3 == 0)
            assert not any(p.requires_grad for p in target.parameters())


def test_targets_follow_softly_below_tau_one(team_of_two: TeamSpec) -> None:
    learner = make_learner(team_of_two, tau=0.25)
    agent, target = learner.module["team"].get_target_network_pairs()[0]
    old = target.fc_out.weight.detach().clone()
    update(learner, sample_all(play(team_of_two, 3)))
    expected = 0.25 * agent.fc_out.weight + 0.75 * old
    torch.testing.assert_close(target.fc_out.weight, expected.detach())


@pytest.mark.parametrize("optimizer_name", ["rmsprop", "adam"])
@pytest.mark.parametrize("lr", [1e-3, [(0, 1e-3), (100, 5e-4)]])
def test_importance_weights_can_learn_at_a_rate_of_their_own(
    team_of_two: TeamSpec, optimizer_name: str, lr: Any
) -> None:
    learner = make_learner(
        team_of_two, mixer="qplex", optimizer_name=optimizer_name, lr=lr, importance_lr_factor=30.0
    )
    module = learner.module["team"]
    importance = {id(p) for p in module.mixer.importance.parameters()}
    others = {id(p) for p in module.parameters() if p.requires_grad} - importance
    optimizers = dict(learner.get_optimizers_for_module("team"))
    held = {
        name: {id(p) for group in optimizer.param_groups for p in group["params"]}
        for name, optimizer in optimizers.items()
    }
    assert held == {"members": others, "importance": importance}
    before = [p.detach().clone() for p in module.parameters()]
    metrics = update(learner, sample_all(play(team_of_two, 3), play(team_of_two, 2, seed=1)))
    assert not all(map(torch.equal, before, module.parameters()))
    assert metrics["members_grad_norm"] > 0
    assert metrics["importance_grad_norm"] > 0

    def rates() -> dict[str, float]:
        return {name: optimizer.param_groups[0]["lr"] for name, optimizer in optimizers.items()}

    assert rates() == pytest.approx({"members": 1e-3, "importance": 30e-3})
    if not isinstance(lr, float):
        learner.after_gradient_based_update(timesteps={"num_env_steps_sampled_lifetime": 50})
        assert rates() == pytest.approx({"members": 7.5e-4, "importance": 22.5e-3})


@pytest.mark.parametrize("settings", [{}, {"mixer": "qmix", "importance_lr_factor": 30.0}])
def test_all_learn_at_one_rate_otherwise(team_of_two: TeamSpec, settings: Any) -> None:
    learner = make_learner(team_of_two, **({"mixer": "qplex"} | settings))
    assert [name for name, _ in learner.get_optimizers_for_module("team")] == ["default_optimizer"]


@pytest.mark.parametrize("optimizer_name", ["rmsprop", "adam"])
def test_a_learners_state_can_be_restored(team_of_two: TeamSpec, optimizer_name: str) -> None:
    settings = {"target_update_freq": 4, "optimizer_name": optimizer_name}
    learner, other = make_learner(team_of_two, **settings), make_learner(team_of_two, **settings)
    batch = sample_all(*(play(team_of_two, 3, seed) for seed in range(3)))
    for _ in range(5):
        update(learner, batch)
    state = learner.get_state()
    other.set_state(state)
    for key in ("rl_module", "optimizer", "num_updates_per_module"):
        _assert_same(other.get_state()[key], state[key])
    # Equal also in what they do next: targets, optimiser and the count until the next copy.
    for _ in range(4):
        mine, others = update(learner, batch), update(other, batch)
        assert mine["loss"] == others["loss"]
    _assert_same(other.module.get_state(), learner.module.get_state())


def _assert_same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert set(one) == set(other)
        for key in one:
            _assert_same(one[key], other[key])
    elif isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other)
    else:
        assert one == other or (one != one and other != other)


# Config.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mixer": "sum"}, "mixer='sum' is unknown; it is one of qmix, vdn, qplex, none"),
        ({"agent": "lstm"}, "agent='lstm' is unknown"),
        ({"tau": 0.0}, r"tau=0.0 must lie in \(0, 1\]"),
        ({"epsilon": [(0, 1.0), (10, -0.1)]}, "must stay within 0 and 1"),
        ({"epsilon": [(5, 1.0), (10, 0.1)]}, "first timestep must be 0"),
        ({"batch_size_episodes": 0}, "batch_size_episodes=0 must be a whole number"),
        ({"updates_per_episode": 0.0}, "must be above 0"),
        (
            {"buffer_capacity_episodes": 10, "num_episodes_before_learning": 11},
            "learning would not begin",
        ),
        ({"num_kernel": 0}, "num_kernel=0 must be a whole number"),
        ({"importance_lr_factor": 0.0}, "importance_lr_factor=0.0 must be above 0"),
        ({"n_step": 0}, "n_step=0 must be a whole number"),
        ({"td_lambda": 1.5}, r"td_lambda=1.5 must lie in \[0, 1\]"),
        ({"td_lambda": 0.6, "n_step": 3}, "n_step=3 and td_lambda=0.6: a target is an n-step or a"),
        (
            {"prioritized_replay_alpha": -0.1},
            r"prioritized_replay_alpha=-0.1 must lie in \[0, 1\]; 0 draws episodes uniformly",
        ),
        ({"prioritized_replay_beta": 1.01}, r"prioritized_replay_beta=1.01 must lie in \[0, 1\]"),
        ({"prioritized_replay_eta": float("nan")}, r"prioritized_replay_eta=nan must lie in"),
        ({"grad_clip_by": "value"}, "QMIX clips by 'global_norm' only"),
    ],
)
def test_invalid_settings_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        QMIXConfig().training(**settings).validate()


def test_the_defaults_are_valid() -> None:
    config = QMIXConfig()
    config.validate()
    assert config.batch_mode == "complete_episodes"
