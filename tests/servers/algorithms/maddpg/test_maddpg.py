"""MADDPG as a server runs it: settings, delayed updates, noise, and who is missing."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
from tests.servers.acted import actions_of
from tests.servers.algorithms.joint_critics.pulling import (
    SMALL,
    Game,
    learner_of,
    parts_moved,
    plan_of,
    playing,
    weights_of,
)

from muxrl.servers.algorithms.maddpg import MADDPGConfig
from muxrl.servers.algorithms.registry import AlgorithmProblem, get_algorithm

in_process = pytest.mark.usefixtures("rllib")


def game(**settings: Any) -> AbstractContextManager[Game]:
    return playing(plan_of(algorithm="MADDPG", settings={**SMALL, **settings}))


# --- settings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy_delay": 0}, "policy_delay=0 must be a whole number of at least 1"),
        ({"policy_delay": 1.5}, "policy_delay=1.5 must be a whole number"),
        ({"target_noise": -0.1}, "target_noise=-0.1 must be at least 0"),
        ({"target_noise_clip": -1.0}, "target_noise_clip=-1.0 must be at least 0"),
        ({"exploration_noise": [(0, 0.5), (10, -0.1)]}, "must be at least 0"),
        ({"exploration_noise": [(5, 0.5), (10, 0.1)]}, "first timestep must be 0"),
        ({"hidden_dim": 0}, "hidden_dim=0 must be a whole number of at least 1"),
        ({"updates_per_step": 0.0}, "updates_per_step=0.0 must be above 0"),
        ({"grad_clip_by": "value"}, "MADDPG clips by 'global_norm' only"),
    ],
)
def test_values_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MADDPGConfig().training(**settings).validate()


def test_settings_and_names_of_others_are_refused() -> None:
    entry = get_algorithm("maddpg")
    with pytest.raises(AlgorithmProblem, match="MADDPG has no setting 'lr'; it is 'actor_lr' here"):
        entry.make_config({"lr": 0.1})
    with pytest.raises(AlgorithmProblem, match="MADDPG has no setting 'initial_alpha'"):
        entry.make_config({"initial_alpha": 0.1})
    with pytest.raises(AlgorithmProblem, match="MADDPG's setting 'twin_critics' must be true or"):
        entry.make_config({"twin_critics": 2})
    with pytest.raises(AlgorithmProblem, match="MADDPG has no separate model settings"):
        entry.make_config({}, {"fcnet_hiddens": [8]})
    with pytest.raises(AlgorithmProblem, match="'matd3' is called MADDPG here"):
        get_algorithm("matd3")
    assert not entry.samples_actions
    assert not entry.needs_log_probabilities


# --- the loop -------------------------------------------------------------------------------


@pytest.mark.parametrize("policy_delay", [1, 3])
@in_process
def test_actor_and_targets_move_at_every_so_manyth_update(policy_delay: int) -> None:
    """Updates begin with the 20th step, and come one by one: batches are of one step."""
    with game(policy_delay=policy_delay, rollout_fragment_length=1, tau=0.5) as played:
        played.play(19)
        learner = learner_of(played)
        seen = []
        for _ in range(4):
            before, num = weights_of(played), learner._num_updates["team"]
            played.play(10)
            assert learner._num_updates["team"] == num + 10
            assert parts_moved(before, weights_of(played)) == {
                "actor", "critic", "_target_actor", "_target_critic"
            }  # fmt: skip
            steps = learner.get_optimizer("team", "policy").state_dict()["state"].values()
            seen.append({int(one["step"]) for one in steps})
        num = learner._num_updates["team"]
    assert seen[-1] == {num // policy_delay}


@in_process
def test_an_update_without_the_actors_moves_the_critics_alone() -> None:
    with game(policy_delay=1_000) as played:
        before = weights_of(played)
        played.play(60)
        assert parts_moved(before, weights_of(played)) == {"critic"}


@in_process
def test_the_actors_loss_does_not_move_the_critics() -> None:
    with game(critic_lr=0.0, policy_delay=1) as played:
        before = weights_of(played)
        played.play(40)
        moved = parts_moved(before, weights_of(played))
    # The critics' targets may move by rounding: they average what is equal.
    assert moved - {"_target_critic"} == {"actor", "_target_actor"}


@in_process
def test_an_update_with_numbers_that_are_not_finite_is_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with game(policy_delay=1) as played:
        played.play(20)
        before = weights_of(played)
        played.policies.algo._replays["team"]._rewards[:] = np.inf  # type: ignore[attr-defined]
        played.play(10)
        moved = parts_moved(before, weights_of(played))
    assert "policy 'team': an update is skipped, the weights" in caplog.text
    assert moved <= {"_target_actor", "_target_critic"}


@in_process
def test_noise_is_for_training_alone() -> None:
    with game(exploration_noise=1.0) as played:
        assert played.pulls(0.5) == played.pulls(0.5)
        played.play(10)
        replay = played.policies.algo._replays["team"]  # type: ignore[attr-defined]
        taken = replay.sample(100)["actions"]
    assert taken.std() > 0.4  # the untrained actor's own lie close together
    assert (np.abs(taken) <= 1.0).all()


@in_process
def test_a_team_of_which_one_has_left_goes_on_learning() -> None:
    """Its row is absent in what is stored, and everything stays finite."""
    from muxrl.protocol.messages import EndEpisode, StartEpisode, Step

    plan = dataclasses.replace(
        plan_of(algorithm="MADDPG", settings={**SMALL, "policy_delay": 1}), late_members="allow"
    )
    played = Game(plan)
    played.policies.start()
    try:
        store = played.policies.store
        for number in range(6):
            episode_id, rewards = f"e{number}", {}
            store.accept(StartEpisode(episode_id), 0.0)
            for t, agents in enumerate(["ab", "a", "ab", "b", "b"]):
                seen = dict.fromkeys(agents, np.array([0.1 * t], np.float32))
                pending = store.accept(Step(episode_id, t, seen, rewards), 0.0)
                store.finish_frame()
                played.wait()
                actions = actions_of(played.policies.acting, pending)
                assert set(actions) == set(agents)
                rewards = dict.fromkeys(agents, 1.0)
            final = {"b": np.zeros(1, np.float32)}
            store.accept(EndEpisode(episode_id, 5, True, rewards, {}, {"b": True}, final), 0.0)
            store.finish_frame()
        played.wait()
        assert not played.problems
        stored = played.policies.algo._replays["team"].sample(300)  # type: ignore[attr-defined]
        weights = weights_of(played)
    finally:
        played.end()
    assert {tuple(map(int, row)) for row in stored["obs"]["alive"]} == {(1, 1), (1, 0), (0, 1)}
    assert not stored["terminateds"].any()
    assert all(np.isfinite(values).all() for values in weights.values())
