"""A server's callbacks run in the learning thread, are recorded, and are named when they fail."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.servers.resumable import CASES, Served
from tests.servers.resumable import plan_of as resumable_plan
from tests.servers.trainers.test_policies import PATIENCE_S, plan_of, play, policies_of, wait_for
from tests.servers.training_callbacks import SET, schedules_of

from muxrl.experiments.studies.case_table import evaluated, train
from muxrl.orchestrator.config import load_config, prepare
from muxrl.orchestrator.errors import ConfigError
from muxrl.servers.training.policies import ServerProblem

HERE = "tests.servers.training_callbacks"
REWARDS = "4 finite rewards of 'a', one for each action"
NANS = "array([nan, nan, nan, nan])"


def wait_until(is_there: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_callbacks_get_episodes_and_updates_and_their_metrics_are_recorded() -> None:
    policies = policies_of(plan_of(callbacks=f"{HERE}:Diary"))
    policies.start()
    play(policies, "first")
    wait_for(policies, 1)
    play(policies, "second")
    wait_for(policies, 2)
    play(policies, "measured", mode="eval")
    play(policies, "third")
    wait_for(policies, 3)
    records: list[dict[str, Any]] = []
    wait_until(lambda: records.extend(policies.drain_records()) or len(records) == 3)
    assert policies.finish(PATIENCE_S)
    told = [record["learner"]["callbacks"] for record in records]
    returned = 2 * (1.0 + 2.0 + 3.0 + 9.0)
    assert told[-1]["rows"] == records[-1]["learner"]["default"]["rows"]
    assert told[-1]["episodes"] in (2, 3), "of the third episode's end perhaps not yet"
    assert told[-1]["sum"] == told[-1]["episodes"] * returned
    assert policies.acting.learners["default"].rate == 1 / 3  # type: ignore[attr-defined]


def test_simulations_continue_while_callbacks_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """If simulations waited, a callback that plays on its own server would wait for itself."""
    ahead: list[int] = []
    monkeypatch.setattr(
        f"{HERE}.Diary.on_update", lambda self, update: ahead.append(policies.feed.num_ahead)
    )
    policies = policies_of(plan_of(callbacks=f"{HERE}:Diary"))
    policies.start()
    play(policies, "first")
    wait_for(policies, 1)
    assert policies.finish(PATIENCE_S)
    assert ahead == [0]


def test_rewards_are_shaped_for_the_learner_alone() -> None:
    policies = policies_of(plan_of(callbacks=f"{HERE}:Potential"))
    policies.start()
    play(policies, "first")
    wait_for(policies, 1)
    (record,) = policies.drain_records()
    assert policies.finish(PATIENCE_S)
    trainer: Any = policies.acting.learners["default"]
    # No final observation was sent: the last observation stands for it, so that its potential adds
    # 0.
    assert [one.rewards.tolist() for one in trainer.seen] == [[2.0, 3.0, 4.0, 9.0]] * 2
    assert record["episode_return_mean"] in (None, 1.0 + 2.0 + 3.0 + 9.0), "as played"


@pytest.mark.parametrize(
    "case",
    ["PPO", "A2C", "MAPPO", "HAPPO", "IMPALA", "APPO", "DQN", "SAC", "QMIX", "MASAC", "MADDPG"],
)
def test_schedules_that_are_set_count_from_then_on(case: str) -> None:
    settings = {**CASES[case][1], "min_sample_timesteps_per_iteration": 16}
    served = Served(resumable_plan(case, settings=settings, callbacks=f"{HERE}:Settings"))
    served.play(0, 12)
    served.end()
    acting = served.policies.acting
    *_, last = served.policies.drain_records()
    for policy_id, learner in acting.learners.items():
        names = schedules_of(learner.settings)
        told = {
            name: number
            for name, number in last["learner"][policy_id].items()
            if name.endswith(("learning_rate", "epsilon", "entropy_coeff", "exploration_noise"))
        }
        assert len(told) >= len(names) > 0
        assert told == dict.fromkeys(told, SET)
        acts: Any = acting.acting(policy_id)
        assert [getattr(acts.settings, name) for name in names] == [SET] * len(names)
        assert acting.epsilon(policy_id) in (None, SET)


def test_built_in_algorithms_learn_what_the_callbacks_pay() -> None:
    """Both agents would choose 0, for a return of 2; the callbacks pay them the other way round."""
    few = {"lr": 0.01, "train_batch_size_per_learner": 32}
    replay = {"num_steps_sampled_before_learning_starts": 64, "training_intensity": 32.0}
    config = load_config({
        "simulation": {
            "env": "muxrl.experiments.simulations.matrix_game:MatrixGame",
            "kwargs": {"payoffs": [[2.0, 1.0], [1.0, 0.0]]},
        },
        "servers": {
            "a": {"algorithm": "A2C", "agents": ["agent_0"], "settings": few},
            "b": {"algorithm": "DQN", "agents": ["agent_1"], "settings": {
                **few, **replay, "epsilon": [[0, 1.0], [300, 0.1]]}},
        },
    })  # fmt: skip
    for server in config.servers.values():
        server.callbacks = f"{HERE}:Contrary"
        server.while_learning = "wait"
    (figures,) = train(config, 1_000, None, evaluated(1)).values()
    assert figures["return"] == 0.0


@pytest.mark.parametrize(
    ("name", "story"),
    [
        ("OnEpisodeAlone", "OnEpisodeAlone.on_episode: KeyError: 'no such page'"),
        ("ReturnsText", "ReturnsText.on_update: expected figures by name or None, got str"),
        ("OneReward", f"OneReward.shape_rewards: expected {REWARDS}, got [1.0]"),
        ("NoReward", f"NoReward.shape_rewards: expected {REWARDS}, got {NANS}"),
    ],
)
def test_a_callback_that_fails_ends_training_with_its_error(name: str, story: str) -> None:
    failures: list[str] = []
    policies = policies_of(plan_of(callbacks=f"{HERE}:{name}"), failures)
    policies.start()
    for i in range(3):
        if not failures:
            play(policies, f"episode-{i}")
            wait_until(lambda: failures or policies.feed.is_open)
    wait_until(lambda: failures)
    assert failures == [f"training failed: CallbackFailed: callbacks {HERE}:{story}"]


def test_wrong_callbacks_are_refused_when_a_server_starts() -> None:
    with pytest.raises(ServerProblem, match=r"server 'scripted': callbacks: .* has none of"):
        policies_of(plan_of(callbacks=f"{HERE}:Neither"))


def test_a_config_with_wrong_callbacks_is_refused() -> None:
    config = {
        "simulation": {"env": "muxrl.experiments.simulations.two_step_game:TwoStepGame"},
        "servers": {
            "a": {"algorithm": "IQL", "agents": ["*"], "callbacks": f"{HERE}:Neither"},
        },
        "stop": {"env_steps": 10},
    }
    problem = (
        f"callbacks: '{HERE}:Neither' has none of the methods shape_rewards, on_episode, on_update"
    )
    with pytest.raises(ConfigError, match=problem):
        prepare(load_config(config))
    config["servers"]["a"]["algorithm"] = "RANDOM"  # type: ignore[index]
    with pytest.raises(ConfigError, match="has callbacks, but RANDOM does not learn"):
        prepare(load_config(config))
