"""What DQN and SAC share: which updates are due, when targets move, and acting copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.servers.algorithms.playing import actors_of, learned, make, play

from muxrl.servers.algorithms.dqn import DQN
from muxrl.servers.algorithms.off_policy import OffPolicy
from muxrl.servers.algorithms.sac import SAC
from muxrl.servers.algorithms.update import Targets
from muxrl.servers.trainers.acting import Actors

SMALL: dict[str, Any] = {
    "train_batch_size_per_learner": 8,
    "num_steps_sampled_before_learning_starts": 32,
    "rollout_fragment_length": 4,
}
BOTH = pytest.mark.parametrize("cls", [DQN, SAC])


def learn(actors: Actors, num: int, rng: np.random.Generator, **how: Any) -> dict[str, float]:
    """Plays an episode of `num` steps, and learns from it; returns the metrics."""
    piece = play(actors, num, rng, name=f"e{actors.num_env_steps_sampled}", **how)
    found: dict[str, float] = learned(actors, piece, num_env_steps=num)["p"]
    return found


@BOTH
@pytest.mark.parametrize(("intensity", "updates"), [(None, 0.25), (10.0, 1.25), (5.5, 0.6875)])
@pytest.mark.parametrize(("pieces", "num"), [((31, 40), 40), ((128,), 100), ((12, 116, 10), 110)])
def test_training_intensity_is_steps_trained_for_each_played(
    cls: type[OffPolicy], pieces: tuple[int, ...], num: int, intensity: float | None, updates: float
) -> None:
    """An update has a batch of 8, every 4 env steps; RLlib would round the intensity 5.5 to 6.

    The steps before the 32nd bring no updates, however many come at once, except for the fragment
    that ends with it.
    """
    actors = actors_of(cls, training_intensity=intensity, **SMALL)
    trainer: Any = actors.learners["p"]
    rng = np.random.default_rng(0)
    for length in pieces:
        learn(actors, length, rng)
        assert bool(trainer.num_updates) == (actors.num_env_steps_sampled >= 32)
    assert trainer.num_updates + trainer._due == pytest.approx(num * updates)


@BOTH
def test_subclasses_and_callbacks_may_change_what_settings_say(cls: type[OffPolicy]) -> None:
    class Own(cls):  # type: ignore[valid-type, misc]
        batch_env_steps = 7
        batch_size = 5

        def make_targets(self) -> Targets:
            made.append(super().make_targets())
            return made[0]

    made: list[Targets] = []
    trainer: Any = actors_of(Own, **SMALL).learners["p"]
    assert (trainer.batch_env_steps, trainer.batch_size) == (7, 5)
    assert trainer.targets in made, "and the copy that acts has its own"
    trainer.settings.gamma = 0.5
    assert trainer.gamma == 0.5


def test_a_policy_that_is_absent_learns_from_what_it_has() -> None:
    """An absent policy learns from its replay; one that joins late learns nothing for the time
    before."""
    actors = actors_of(DQN, **SMALL)
    trainer: Any = actors.learners["p"]
    actors.num_env_steps_sampled = 1_000
    actors.learners.learn_all({}, actors.num_env_steps_sampled)
    assert not trainer.num_updates
    learn(actors, 4, np.random.default_rng(0))
    assert trainer.num_updates == 1
    actors.num_env_steps_sampled += 8
    metrics = actors.learners.learn_all({}, actors.num_env_steps_sampled)["p"]
    assert metrics["num_updates"] == 3


def test_a_record_has_losses_though_its_last_batch_brought_no_update() -> None:
    actors = actors_of(DQN, training_intensity=0.8, **SMALL)  # an update for ten env steps
    rng = np.random.default_rng(0)
    learn(actors, 40, rng)
    learn(actors, 9, rng)
    before = actors.learners["p"].num_updates  # type: ignore[attr-defined]
    metrics = learn(actors, 2, rng)
    assert metrics["num_updates"] == before
    assert metrics["qf_loss"] > 0.0


@BOTH
def test_a_fragment_is_n_steps_unless_it_is_given(cls: type[OffPolicy]) -> None:
    """A fragment may be shorter than n steps, which RLlib refuses."""
    assert make(cls, n_step=3, rollout_fragment_length="auto").batch_env_steps == 3
    assert make(cls, n_step=3, rollout_fragment_length=1).batch_env_steps == 1


@BOTH
def test_targets_move_by_tau_once_so_many_env_steps_have_come(cls: type[OffPolicy]) -> None:
    actors = actors_of(cls, target_network_update_freq=20, tau=0.25, **SMALL)
    trainer: Any = actors.learners["p"]
    of, copies = trainer.targets._of, trainer.targets._copies
    rng, moved_at = np.random.default_rng(0), []
    for _ in range(25):
        before = [one.clone() for one in copies]
        learn(actors, 4, rng)
        expected = [b + 0.25 * (one - b) for b, one in zip(before, of, strict=True)]
        if not all(torch.equal(a, b) for a, b in zip(before, copies, strict=True)):
            moved_at.append(actors.num_env_steps_sampled)
            torch.testing.assert_close([*copies], expected)
    assert moved_at == [32, 52, 72, 92]
    assert learn(actors, 4, rng)["num_target_updates"] == 4


@BOTH
def test_a_copy_acts_with_what_was_learned(cls: type[OffPolicy]) -> None:
    actors = actors_of(cls, **SMALL)
    learn(actors, 60, np.random.default_rng(0))
    learner: Any = actors.learners["p"]
    actor: Any = actors._actors["p"]
    seen = torch.randn(6, 4)
    assert torch.equal(learner.network()(seen), actor.network()(seen))
    assert actor.env_steps == 60
