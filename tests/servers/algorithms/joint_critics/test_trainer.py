"""What MADDPG and MASAC share: settings, which updates are due, absent members, resuming."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.servers.acted import actions_of
from tests.servers.algorithms.joint_critics.naive import (
    HAS_DIMENSION,
    make_batch,
    make_trainer,
    piece_of,
    rows_of,
)
from tests.servers.algorithms.joint_critics.pulling import (
    SMALL,
    plan_of,
    playing,
    trainer_of,
    weights_of,
)
from tests.servers.scripted_store import make_plan

from muxrl.protocol.messages import EndEpisode, StartEpisode, Step
from muxrl.protocol.spaces import Box
from muxrl.servers.agents.keys import OBS
from muxrl.servers.algorithms.joint_critics.maddpg import MADDPG
from muxrl.servers.algorithms.joint_critics.masac import MASAC
from muxrl.servers.config import ServerPlan
from muxrl.servers.lookup import find
from muxrl.servers.setting_values import AlgorithmProblem

BOTH = pytest.mark.parametrize("make", [MADDPG, MASAC])

# --- settings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("MADDPG", {"policy_delay": 0}, "policy_delay=0 must be a whole number of at least 1"),
        ("MADDPG", {"target_noise": -0.1}, "target_noise=-0.1 must be at least 0"),
        ("MADDPG", {"target_noise_clip": -1.0}, "target_noise_clip=-1.0 must be at least 0"),
        ("MADDPG", {"exploration_noise": [(0, 0.5), (10, -0.1)]}, "must be at least 0"),
        ("MADDPG", {"lr": 0.1}, "MADDPG has no setting 'lr'; it is 'actor_lr' here"),
        ("MADDPG", {"initial_alpha": 0.1}, "MADDPG has no setting 'initial_alpha'"),
        ("MASAC", {"tau": 0.0}, r"tau=0.0 must lie in \(0, 1\]"),
        ("MASAC", {"initial_alpha": 0.0}, "initial_alpha=0.0 must be above 0"),
        ("MASAC", {"updates_per_step": 0.0}, "updates_per_step=0.0 must be above 0"),
        (
            "MASAC",
            {"num_steps_before_learning": 50, "buffer_capacity_steps": 40},
            "50 steps never fit into buffer_capacity_steps=40: learning would not begin",
        ),
        ("MASAC", {"center_rewards": True}, "it is a part of standardize_rewards"),
        ("MASAC", {"lr": 0.1}, "MASAC has no setting 'lr'; it is 'actor_lr' here"),
    ],
)
def test_settings_out_of_range_are_refused(
    name: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(AlgorithmProblem, match=message):
        find(name).make_settings(plan_of(settings=settings))  # type: ignore[attr-defined]


def test_model_settings_an_rl_module_and_the_name_matd3_are_refused() -> None:
    plan = plan_of(model={"fcnet_hiddens": [8]}, rl_module="muxrl.experiments:Own")
    problems = "\n".join(find("masac").find_config_problems(plan))
    assert "MASAC has no separate model settings" in problems
    assert "MASAC cannot take an RLModule of your own" in problems
    with pytest.raises(AlgorithmProblem, match="'matd3' is called MADDPG here"):
        find("matd3")
    samples = {name: find(name).samples_actions for name in ("MADDPG", "MASAC")}
    assert samples == {"MADDPG": False, "MASAC": True}


# --- acting ---------------------------------------------------------------------------------


@BOTH
def test_actions_stay_in_the_dimensions_that_members_have(make: Any) -> None:
    trainer, batch = make_trainer(make), make_batch(np.random.default_rng(0))
    acted = [
        trainer.act(rows_of(batch[OBS], explores=explores)).actions for explores in (False, True)
    ]
    acted += [trainer.draw_actions(batch[OBS][OBS])[0].detach().numpy()] if make is MASAC else []
    for actions in acted:
        assert (np.abs(actions) <= 1.0).all()
        np.testing.assert_array_equal(actions != 0, np.broadcast_to(HAS_DIMENSION, actions.shape))
    if make is MADDPG:
        assert not trainer.target_actions(batch[OBS]).numpy()[:, HAS_DIMENSION == 0].any()


# --- what is due ----------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(("updates_per_step", "num"), [(1.0, 81), (0.25, 20)])
def test_updates_follow_the_steps_from_when_there_are_enough(
    make: Any, updates_per_step: float, num: int
) -> None:
    """The 20th step fills the replay enough, and it brings updates itself."""
    trainer = make_trainer(
        make, num_steps_before_learning=20, batch_size_steps=4, updates_per_step=updates_per_step
    )
    rng = np.random.default_rng(0)
    for k in range(10):
        metrics = trainer.learn([piece_of(rng, 10, t=10 * k)])
    assert metrics["num_steps_stored"] == 100
    assert metrics["num_updates"] == num
    assert {int(one["step"]) for one in trainer.steps["qf"].optimizer.gathered().values()} == {num}


def test_a_take_of_many_rows_brings_no_updates_for_those_before_the_threshold() -> None:
    trainer = make_trainer(MADDPG, num_steps_before_learning=100, batch_size_steps=4)
    rng, found = np.random.default_rng(0), []
    for k in range(2):
        found.append(trainer.learn([piece_of(rng, 16, f"e{k}.{i}") for i in range(4)]))
    # For the 100th to the 128th step.
    assert [metrics["num_updates"] for metrics in found] == [0, 29]


def test_learning_goes_on_where_a_full_replay_holds_fewer_steps_than_it_began_with() -> None:
    """Learning goes on, although the last observation of each episode takes a place in the full
    replay."""
    trainer = make_trainer(
        MASAC, num_steps_before_learning=20, buffer_capacity_steps=20, batch_size_steps=4
    )
    rng = np.random.default_rng(0)
    for k in range(40):
        metrics = trainer.learn([piece_of(rng, 1, f"e{k}", is_terminated=True)])
    assert metrics["num_steps_stored"] < 19
    assert metrics["num_updates"] == 21


def test_learning_waits_until_a_replay_that_was_not_saved_is_filled_again() -> None:
    settings = {"num_steps_before_learning": 20, "batch_size_steps": 4}
    first, second = (make_trainer(MADDPG, **settings) for _ in range(2))
    rng = np.random.default_rng(0)
    before = first.learn([piece_of(rng, 30)])["num_updates"]
    second.load(copy.deepcopy(first.state()))
    second.refill_replay(30)
    after = [second.learn([piece_of(rng, 15, f"e{k}")])["num_updates"] for k in range(2)]
    assert after == [before, before + 11]


# --- on a server ----------------------------------------------------------------------------


def test_noise_is_for_training_alone() -> None:
    settings = {**SMALL, "exploration_noise": 1.0}
    with playing(plan_of(algorithm="MADDPG", settings=settings)) as played:
        assert played.pulls(0.5) == played.pulls(0.5)
        played.play_steps(10)
        taken = trainer_of(played).replay.sample(100)["actions"]
    assert taken.std() > 0.4  # the actions of the untrained actor alone lie close together
    assert (np.abs(taken) <= 1.0).all()


DIMS = {"a": 1, "b": 2, "c": 1}


def unlike_plan(algorithm: str) -> ServerPlan:
    """Returns the plan of a team whose unlike members may come late."""
    sees = {"a": Box((2,)), "b": Box((3,)), "c": Box((2,))}
    plan = make_plan(dict(sees), {"team": ("a", "b", "c")})
    agents = {
        m: dataclasses.replace(plan.agents[m], action_space=Box((d,), "float32", 0.0, 1.0))
        for m, d in DIMS.items()
    }
    return dataclasses.replace(
        plan, algorithm=algorithm, agents=agents, settings=SMALL, late_members="allow"
    )


@pytest.mark.parametrize("algorithm", ["MADDPG", "MASAC"])
def test_a_team_learns_whoever_is_missing(algorithm: str) -> None:
    """A team learns although b comes late and dies, c acts now and then, and some episodes are
    truncated."""
    asked = ["ac", "abc", "ab", "abc", "a", "ac"]
    rng = np.random.default_rng(0)
    with playing(unlike_plan(algorithm)) as played:
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
        stored = trainer_of(played).replay.sample(500)
        state = weights_of(played)
        assert trainer_of(played).num_updates > 50
    assert all(np.isfinite(values).all() for values in state.values())
    patterns = {tuple(map(int, row)) for row in stored["obs"]["alive"]}
    assert patterns == {(1, 0, 1), (1, 1, 1), (1, 1, 0), (1, 0, 0)}
    assert not stored["obs"]["obs"][stored["obs"]["alive"] == 0].any()
    # Two of three episodes end with a termination, which is one step in six.
    assert stored["terminateds"].mean() == pytest.approx(2 / 3 / 6, abs=0.05)
