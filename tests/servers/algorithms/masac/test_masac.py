"""MASAC as a server runs it: settings, the loop, absent members, frozen."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.servers.acted import actions_of
from tests.servers.algorithms.joint_critics.pulling import (
    SMALL,
    learner_of,
    parts_moved,
    plan_of,
    playing,
    weights_of,
)
from tests.servers.scripted_store import make_plan

from muxrl.protocol.messages import EndEpisode, StartEpisode, Step
from muxrl.protocol.spaces import Box
from muxrl.servers.algorithms.masac.masac import MASACConfig
from muxrl.servers.algorithms.registry import AlgorithmProblem, get_algorithm
from muxrl.servers.config import ServerPlan
from muxrl.servers.server import make_policies

in_process = pytest.mark.usefixtures("rllib")

# --- settings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_dim": 0}, "hidden_dim=0 must be a whole number of at least 1"),
        ({"batch_size_steps": 1.5}, "batch_size_steps=1.5 must be a whole number"),
        ({"tau": 0.0}, r"tau=0.0 must lie in \(0, 1\]"),
        ({"initial_alpha": 0.0}, "initial_alpha=0.0 must be above 0"),
        ({"updates_per_step": -1.0}, "updates_per_step=-1.0 must be above 0"),
        ({"target_entropy": "low"}, "target_entropy='low' must be a number or 'auto'"),
        (
            {"num_steps_before_learning": 50, "buffer_capacity_steps": 40},
            "50 steps never fit into buffer_capacity_steps=40: learning would not begin",
        ),
        ({"grad_clip_by": "value"}, "MASAC clips by 'global_norm' only"),
    ],
)
def test_values_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MASACConfig().training(**settings).validate()


def test_settings_of_others_are_refused() -> None:
    entry = get_algorithm("masac")
    with pytest.raises(AlgorithmProblem, match="MASAC has no setting 'lr'; it is 'actor_lr' here"):
        entry.make_config({"lr": 0.1})
    with pytest.raises(AlgorithmProblem, match="MASAC has no separate model settings"):
        entry.make_config({}, {"fcnet_hiddens": [8]})
    with pytest.raises(AlgorithmProblem, match="MASAC cannot take an RLModule of your own"):
        entry.make_config({}, {}, "muxrl.experiments.examples.own_module:SharedTrunk")
    assert entry.samples_actions
    assert not entry.needs_log_probabilities
    assert not entry.fills_replay_by_agent


@pytest.mark.parametrize(
    ("settings", "expected"), [({}, [-2.0, -1.0]), ({"target_entropy": -0.5}, [-0.5, -0.5])]
)
@in_process
def test_the_target_entropy_is_each_members(settings: Any, expected: list[float]) -> None:
    plan = plan_of(settings={**SMALL, **settings})
    two = Box((2,), "float32", -2.0, 2.0)
    plan.agents["a"] = dataclasses.replace(plan.agents["a"], action_space=two)
    policies = make_policies(plan, lambda problem: None)
    learner: Any = policies.algo.learner_group._learner  # type: ignore[attr-defined]
    assert learner.target_entropy["team"].tolist() == expected
    policies.close()


# --- the loop -------------------------------------------------------------------------------


@pytest.mark.parametrize(("updates_per_step", "num"), [(1.0, 81), (0.25, 20)])
@in_process
def test_updates_follow_the_steps_from_when_there_are_enough(
    updates_per_step: float, num: int
) -> None:
    """The 20th step fills the replay, and counts."""
    with playing(plan_of(settings={**SMALL, "updates_per_step": updates_per_step})) as played:
        played.play(100)
        replay = played.policies.algo._replays["team"]  # type: ignore[attr-defined]
        assert len(replay) == 100
        learner = learner_of(played)
        adam = learner.get_optimizer("team", "policy").state_dict()["state"]
    assert {int(one["step"]) for one in adam.values()} == {num}


@in_process
def test_an_update_moves_actor_critics_targets_and_temperature() -> None:
    with playing(plan_of(settings={**SMALL, "tau": 0.5})) as played:
        before = weights_of(played)
        learner = learner_of(played)
        alpha = learner.curr_log_alpha["team"].item()
        played.play(40)
        after = weights_of(played)
        assert {name.split(".")[0] for name in before} == {"actor", "critic", "_target_critic"}
        for name in before:
            assert not np.array_equal(before[name], after[name]), name
            assert np.isfinite(after[name]).all(), name
        assert learner.curr_log_alpha["team"].item() != alpha


@in_process
def test_the_actors_loss_does_not_move_the_critics() -> None:
    with playing(plan_of(settings={**SMALL, "critic_lr": 0.0})) as played:
        before = weights_of(played)
        played.play(40)
        moved = parts_moved(before, weights_of(played))
    assert "actor" in moved
    assert "critic" not in moved


@in_process
def test_an_update_with_numbers_that_are_not_finite_is_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with playing(plan_of(settings=SMALL)) as played:
        played.play(20)
        before = weights_of(played)
        replay = played.policies.algo._replays["team"]  # type: ignore[attr-defined]
        replay._rewards[:] = np.inf
        played.play(10)
        after = weights_of(played)
    assert "policy 'team': an update is skipped, the weights" in caplog.text
    for name in before:
        if not name.startswith("_target"):  # which goes on moving towards the other
            np.testing.assert_array_equal(before[name], after[name])


# --- members --------------------------------------------------------------------------------

DIMS = {"a": 1, "b": 2, "c": 1}


def unlike_plan() -> ServerPlan:
    """A team whose members observe and do different things, and may come late."""
    sees = {"a": Box((2,)), "b": Box((3,)), "c": Box((2,))}
    plan = make_plan(dict(sees), {"team": ("a", "b", "c")})
    agents = {
        m: dataclasses.replace(plan.agents[m], action_space=Box((d,), "float32", 0.0, 1.0))
        for m, d in DIMS.items()
    }
    return dataclasses.replace(
        plan, algorithm="MASAC", agents=agents, settings=SMALL, late_members="allow"
    )


@in_process
def test_a_team_learns_whoever_is_missing() -> None:
    """b comes late and dies, c takes turns; the last of three episodes in a row is truncated."""
    asked = ["ac", "abc", "ab", "abc", "a", "ac"]
    rng = np.random.default_rng(0)
    with playing(unlike_plan()) as played:
        store = played.policies.store
        for number in range(15):
            episode_id, rewards, ends = f"e{number}", {}, {}
            store.accept(StartEpisode(episode_id), 0.0)
            for t, agents in enumerate(asked):
                seen = {m: rng.random(3 if m == "b" else 2, np.float32) for m in agents}
                pending = store.accept(Step(episode_id, t, seen, rewards, ends), 0.0)
                store.finish_frame()
                played.wait()
                actions = actions_of(played.policies.acting, pending)
                assert {m: a.shape for m, a in actions.items()} == {m: (DIMS[m],) for m in agents}
                assert all((a >= 0).all() and (a <= 1).all() for a in actions.values())
                rewards = {m: float(actions[m].sum()) for m in agents}
                ends = {"b": True} if t == 3 else {}
            is_truncated = number % 3 == 2
            final = {m: rng.random(2, np.float32) for m in "ac"}
            done = {} if is_truncated else dict.fromkeys("ac", True)
            store.accept(
                EndEpisode(episode_id, len(asked), is_truncated, rewards, done, {}, final), 0.0
            )
            store.finish_frame()
        played.wait()
        assert not played.problems
        stored = played.policies.algo._replays["team"].sample(500)  # type: ignore[attr-defined]
        state = weights_of(played)
    assert all(np.isfinite(values).all() for values in state.values())
    patterns = {tuple(map(int, row)) for row in stored["obs"]["alive"]}
    assert patterns == {(1, 0, 1), (1, 1, 1), (1, 1, 0), (1, 0, 0)}
    assert not stored["obs"]["obs"][stored["obs"]["alive"] == 0].any()
    # Two of three episodes end with a termination, one step in six.
    assert stored["terminateds"].mean() == pytest.approx(2 / 3 / 6, abs=0.05)


# --- frozen ---------------------------------------------------------------------------------


@in_process
def test_a_frozen_team_acts_as_it_did(tmp_path: Path) -> None:
    with playing(plan_of(settings=SMALL)) as played:
        played.play(60)
        saved = played.policies.save(tmp_path / "saved")
        expected = [played.pulls(c) for c in (-1.0, 0.3)]
    plan = plan_of(settings={"checkpoint": str(saved)})
    frozen = make_policies(dataclasses.replace(plan, algorithm="FROZEN"), lambda _: None)
    seen = [dict.fromkeys("ab", np.array([c], np.float32)) for c in (-1.0, 0.3)]
    for number, (value, pulls) in enumerate(zip(seen, expected, strict=True)):
        frozen.store.accept(StartEpisode(f"e{number}"), 0.0)
        pending = frozen.store.accept(Step(f"e{number}", 0, value), 0.0)
        actions = actions_of(frozen.acting, pending)
        assert {m: float(a[0]) for m, a in actions.items()} == pytest.approx(pulls)
    frozen.close()
