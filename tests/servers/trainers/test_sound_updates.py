"""An update that spoils a trainer is undone, counted and logged, as if it had never been made."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import math
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tests.servers.trainers.brought import InNumpy
from tests.servers.trainers.test_policies import (
    HERE,
    PATIENCE_S,
    _end_all,  # noqa: F401, a fixture: else their threads would outlive pytest
    plan_of,
    policies_of,
)
from tests.servers.trainers.test_policies import play as play_episode

from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE
from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.trainers import sound_state
from muxrl.servers.trainers.acting import Actors
from muxrl.servers.trainers.entry import TrainerEntry
from muxrl.servers.trainers.failures import TrainerFailed
from muxrl.servers.trainers.interface import PolicySpec
from muxrl.servers.trainers.plain_state import to_plain
from muxrl.servers.trainers.policies import TrainerPolicies
from muxrl.servers.trainers.sound_state import SoundState
from muxrl.servers.training.policies import LearnerDiverged, ServerProblem


def play(policies: TrainerPolicies, name: str, reward: float) -> None:
    """Plays an episode with this reward in each step, and waits until it is learned."""
    iteration, deadline = policies.iteration, time.monotonic() + PATIENCE_S
    play_episode(policies, name, reward=lambda t: reward)
    while policies.iteration == iteration and not policies.status_problems:  # type: ignore[attr-defined]
        assert time.monotonic() < deadline
        time.sleep(0.001)


def begun(name: str, **fields: Any) -> TrainerPolicies:
    problems: list[str] = []
    plan = plan_of(name, **fields)
    limits = dataclasses.replace(plan.limits, max_abs_reward=1e31)
    policies = policies_of(dataclasses.replace(plan, limits=limits), problems)
    policies.status_problems = problems  # type: ignore[attr-defined]
    policies.start()
    return policies


@pytest.mark.parametrize("name", ["OneTensor", "InNumpy", "RaisesWhenSpoilt"])
def test_an_absurd_reward_is_as_if_it_had_never_been(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sound_state, "_SHARE", math.inf)  # copies the state before each update
    policies, other = begun(name), begun(name)
    for one in (policies, other):
        play(one, "e1", 1.0)
    with caplog.at_level(logging.WARNING):
        play(policies, "e2", 1e30)
    for one in (policies, other):
        play(one, "e3", 2.0)
    for one in (policies, other):
        assert one.finish(PATIENCE_S)
    ours, theirs = (one.acting.get("state")["default"] for one in (policies, other))
    assert repr(ours) == repr(theirs)
    said = [m for m in caplog.messages if "an update is skipped" in m]
    where = {"OneTensor": "['optimizer']['state'][0]['exp_avg_sq']"}.get(name, "['sums']")
    assert "policy 'default': an update is skipped" in said[0]
    assert f"after it state{where} holds inf, beyond 1e+24 or not finite" in said[0]
    assert "the largest number in its batch is the reward of 'a' in episode e2, 1e+30" in said[0]
    assert ("expected finite logits" in said[0]) == (name == "RaisesWhenSpoilt")
    records = policies.drain_records()
    skipped = [one["learner"]["default"].get("num_skipped_updates") for one in records]
    assert skipped == [None, 1, 1]
    policies.save(tmp_path / "saved")
    (warning,) = policies.store.warnings.found
    assert (warning.what, warning.num, warning.env_steps) == ("updates skipped", 1, 8)
    resumed = policies_of(plan_of(name, resume_from=str(tmp_path / "saved")))
    assert resumed.store.warnings.found == [warning]
    assert resumed.acting.learners.skipped.num == {"default": 1}


def test_numbers_that_are_not_finite_from_the_beginning_are_left_alone() -> None:
    policies = begun("InNumpy")
    for i in range(3):
        play(policies, f"e{i}", 1.0)
    policies.finish(PATIENCE_S)
    trainer: Any = policies.acting.learners["default"]
    assert trainer.num_updates == 3
    assert trainer.best == 1.0
    assert not policies.store.warnings.found
    trainer.best = -math.inf
    assert SoundState(trainer, 1).find_corrupt(is_all=True) == ""
    trainer.recent[:] = 1e30
    assert SoundState(trainer, 1).find_corrupt(is_all=True) == ""


def test_a_trainer_that_is_always_spoilt_ends_with_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sound_state, "_SHARE", math.inf)
    policies = begun("InNumpy")
    play(policies, "e", 1.0)
    for i in range(11):
        play(policies, f"e{i}", 1e30)
    (problem,) = policies.status_problems  # type: ignore[attr-defined]
    assert "more than 10 updates of policy 'default' in a row were skipped" in problem
    assert "its learner has diverged; after it state['sums'] holds inf" in problem
    policies.finish(PATIENCE_S)
    policies.save(tmp_path / "saved")
    resumed = policies_of(plan_of("InNumpy", resume_from=str(tmp_path / "saved")))
    trainer: Any = resumed.acting.learners["default"]
    assert trainer.num_updates == 1
    assert trainer.sums.tolist() == [32.0] * 3


def test_a_replay_may_skip_more_updates_and_names_a_number_of_an_earlier_batch() -> None:
    policies = begun("FromAReplay")
    play(policies, "e", 1.0)
    play(policies, "far", 1e30)
    for i in range(20):
        play(policies, f"e{i}", 1.0)
    assert not policies.status_problems  # type: ignore[attr-defined]
    (warning,) = policies.store.warnings.found
    assert warning.num > 20
    assert "is the reward of 'a' in episode far, 1e+30" in warning.text
    policies.finish(PATIENCE_S)  # otherwise its thread would learn at the same time
    with pytest.raises(LearnerDiverged, match="more than 100 updates"):
        list(map(policies.acting.learners.learn, ["default"] * 100, [[]] * 100, [0] * 100))


def test_an_error_without_damage_is_an_error() -> None:
    actors = policies_of(plan_of("FailsToLearn")).acting
    with pytest.raises(TrainerFailed, match="the loss is gone"):
        actors.learners.learn("default", [], 0)


class ShowsItsWeights(InNumpy):
    def weights(self) -> dict[str, Any]:
        return {"sums": self.sums}


class WithoutWeights(InNumpy):
    weights = property()  # type: ignore[assignment]


class WithAReplay(WithoutWeights):
    learns_from = "replay"


@pytest.mark.parametrize(
    ("make", "is_seen"), [(ShowsItsWeights, True), (WithoutWeights, True), (WithAReplay, False)]
)
def test_copies_take_a_small_part_of_the_time(
    make: Any, is_seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer's weights are checked after each update, a replay when a copy is due."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    trainer = make(None)
    copied: list[float] = []

    def slowly(state: Any) -> Any:
        now[0] += 1.0
        copied.append(now[0])
        return to_plain(state)

    monkeypatch.setattr(sound_state, "to_plain", slowly)
    actors = Actors("name", {"default": spec_of_one()}, lambda spec: trainer, 0)
    monkeypatch.setattr(trainer, "learn", lambda pieces: None)

    def learn(num: int) -> None:
        for _ in range(num):
            now[0] += 1.0
            actors.learners.learn("default", [], 0)

    learn(500)
    assert {later - one for one, later in itertools.pairwise(copied)} == {51.0}
    copied.clear()
    now[0] += 50.0
    learn(1)
    trainer.sums[:] = math.inf
    learn(1)
    assert actors.learners.skipped.num["default"] == is_seen
    now[0] += 50.0
    learn(1)
    assert actors.learners.skipped.num["default"] == 1
    assert trainer.sums.tolist() == [0.0] * 3
    copied.clear()
    learn(200)
    most = actors.learners.skipped.most
    # The state is copied before each update while a replay may still hold the number.
    assert [later - one for one, later in itertools.pairwise(copied)][: most - 2] == [2.0] * (
        most - 2
    )
    assert len(copied) < most + 5


def spec_of_one() -> PolicySpec:
    box = gymnasium.spaces.Box(-1, 1, (3,))
    return PolicySpec("default", ("a",), box, gymnasium.spaces.Discrete(3))


def test_numbers_whose_squares_overflow_are_sound() -> None:
    trainer: Any = InNumpy(None)
    trainer.sums = torch.ones(3)
    sound = SoundState(trainer, 1)
    for number, is_sound in ((1e23, True), (-1e23, True), (1e25, False), (math.nan, False)):
        trainer.sums = torch.tensor([1.0, number])
        assert (sound.find_corrupt(is_all=True) == "") == is_sound, number


# --- Stable-Baselines3 -------------------------------------------------------------------------


def sb3(name: str, **settings: Any) -> Actors:
    """Returns the actors of a Stable-Baselines3 trainer that learns from its first batch on."""
    from muxrl.servers.trainers import stable_baselines3

    box = gymnasium.spaces.Box(-np.inf, np.inf, (3,))
    acts: Any = gymnasium.spaces.Box(-1, 1, (1,))
    if name in ("PPO", "A2C"):
        acts = gymnasium.spaces.Discrete(2)
    spec = PolicySpec("default", ("a",), box, acts, seed=1)
    make = getattr(stable_baselines3, name)
    settings = {"batch_env_steps": 16, "total_timesteps": 10_000} | settings
    if name not in ("PPO", "A2C"):
        settings |= {"learning_starts": 0, "batch_size": 16}
    return Actors(f"SB3_{name}", {"default": spec}, lambda s: make(s, **settings), 0)


def piece(actors: Actors, number: int, **spoilt: float) -> Trajectory:
    rng = np.random.default_rng(number)
    spec = actors.specs["default"]
    seen = rng.normal(size=(17, 3)).astype(np.float32)
    actions = np.array([spec.action_space.sample() for _ in range(16)])
    rewards = rng.normal(size=16)
    outputs = {"value": np.zeros(16, np.float32), "log_prob": np.full(16, -0.7, np.float32)}
    if "observation" in spoilt:
        seen[8] = spoilt["observation"]
    if "reward" in spoilt:
        rewards[8] = spoilt["reward"]
    one = Trajectory(f"e{number}_a", f"e{number}", "a", "default", seen, actions, rewards, outputs)
    one.is_terminated = True
    return one


@pytest.mark.parametrize("gradient_steps", [1, -1])
@pytest.mark.parametrize("name", ["SAC", "TD3"])
def test_an_absurd_number_in_the_replay_of_stable_baselines3(
    name: str, gradient_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spoilt update is undone and its number removed; otherwise later updates would draw it
    again."""
    monkeypatch.setattr(sound_state, "_SHARE", math.inf)
    actors = sb3(name, gradient_steps=gradient_steps)
    trainer: Any = actors.learners["default"]
    trainer._model.num_timesteps = 1  # past the steps before learning
    for i in range(4):
        actors.learners.learn("default", [piece(actors, i)], 0)
    num_updates = trainer._model._n_updates
    for i in range(4, 30):
        found = {"observation": 9e14, "reward": 9e11} if i == 8 else {}
        actors.learners.learn("default", [piece(actors, i, **found)], 0)
    assert 1 <= actors.learners.skipped.num["default"] < 10
    assert trainer._model._n_updates > num_updates + 10
    assert trainer.state()["pos"] == 30 * 16
    largest = max(np.abs(trainer.state()["replay"][c]).max() for c in ("observations", "rewards"))
    assert largest < 10.0
    assert SoundState(trainer, 1).find_corrupt(is_all=True) == ""


@pytest.mark.parametrize("name", ["PPO", "A2C"])
@pytest.mark.parametrize("what", ["observation", "reward"])
def test_on_policy_algorithms_go_on_after_an_absurd_number(name: str, what: str) -> None:
    actors = sb3(name)
    for i in range(4):
        found = {} if i != 2 else {what: 3e38}
        with np.errstate(all="ignore"):
            actors.learners.learn("default", [piece(actors, i, **found)], 0)
        assert SoundState(actors.learners["default"], 1).find_corrupt(is_all=True) == ""


# --- checkpoints -------------------------------------------------------------------------------


def test_a_state_that_was_not_checked_yet_is_checked_before_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = begun("OneTensor")
    play(policies, "e1", 1.0)
    monkeypatch.setattr(SoundState, "is_due", False)
    play(policies, "e2", 1e30)
    assert not policies.store.warnings.found
    policies.save(tmp_path / "saved")
    (warning,) = policies.store.warnings.found
    assert "the largest number so far is the reward of 'a' in episode e2, 1e+30" in warning.text
    resumed = policies_of(plan_of("OneTensor", resume_from=str(tmp_path / "saved")))
    assert SoundState(resumed.acting.learners["default"], 1).find_corrupt(is_all=True) == ""


def test_a_refused_checkpoint_is_reported_until_one_is_written(tmp_path: Path) -> None:
    policies = policies_of(plan_of("OneTensor"))
    trainer: Any = policies.acting.learners["default"]
    trainer.weight.data[0] = math.nan
    for num in (1, 2):
        with pytest.raises(ServerProblem, match="not finite any more"):
            policies.save(tmp_path / "saved")
        assert policies.num_refused_checkpoints == num
        assert "state['default']['weight']" in policies.checkpoint_problem
    trainer.weight.data[0] = 0.0
    policies.save(tmp_path / "saved")
    assert policies.num_refused_checkpoints == 2
    assert policies.checkpoint_problem == ""


def test_a_default_that_no_config_can_hold_may_be_saved(tmp_path: Path) -> None:
    name = "HasADefaultThatIsAClass"
    policies = policies_of(plan_of(name))
    policies.save(tmp_path / "saved")
    about = json.loads((tmp_path / "saved" / ABOUT_FILE).read_text())
    assert about["defaults"] == {"rate": 0.1}
    policies_of(plan_of(name, resume_from=str(tmp_path / "saved")))
    entry = TrainerEntry(f"{HERE}:{name}", type(policies.acting.learners["default"]))
    assert list(entry.find_problems(plan_of(name))) == []
