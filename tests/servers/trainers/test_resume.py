"""A server that was stopped and is resumed ends with exactly the weights that it would have had."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tree
from tests.nights import at_night
from tests.servers.acted import actions_of
from tests.servers.resumable import CASES, Served, assert_same, plan_of, play_and_save, scramble

from muxrl.protocol.messages import StartEpisode, Step
from muxrl.protocol.spaces import Box
from muxrl.servers.config import ServerPlan
from muxrl.servers.server import make_policies

_AT_NIGHT = ["MAPPO", "MAPPO with an LSTM", "MASAC", "QMIX", "VDN", "IQL", "DQN, normalised",
             "QMIX, rewards standardized"]  # fmt: skip
"""By day MAPPO and QMIX normalise, PPO has the LSTM, MASAC standardizes rewards, QPLEX has a
mixer."""


@pytest.mark.parametrize("case", at_night(CASES, _AT_NIGHT))
def test_resumed_at_the_end_of_an_episode_it_ends_bit_for_bit_alike(
    rllib: None, tmp_path: Path, case: str
) -> None:
    k, num = 11, 23
    scramble()
    whole = Served(plan_of(case))
    whole.play(0, k)
    begun = whole.state()["trainers"]
    whole.play(k, num)
    whole.end()
    expected = whole.state()
    assert any(
        not np.array_equal(a, b)
        for a, b in zip(tree.flatten(begun), tree.flatten(expected["trainers"]), strict=True)
    ), "it learns in the second half, too"

    scramble()
    first = play_and_save(plan_of(case), tmp_path / "saved", k)

    scramble()
    second = Served(plan_of(case, resume_from=str(tmp_path / "saved")))
    second.play(k, num)
    second.end()
    assert_same(second.state(), expected)
    assert second.policies.acting.weights_seq_no > first.policies.acting.weights_seq_no
    records = [row for one in (first, second) for row in one.policies.drain_records()]
    times = [row["time_s"] for row in records]
    assert times == sorted(times)
    ends = [row["env_steps"] for row in whole.policies.drain_records()]
    assert [row["env_steps"] for row in records] == ends, "an iteration goes on, too"


@pytest.mark.parametrize(
    ("case", "name", "then", "now"),
    [
        ("PPO with schedules", "kl_coeff", 0.5, 7.0),
        ("SAC", "initial_alpha", 0.3, 5.0),
        ("MASAC", "initial_alpha", 0.3, 5.0),
    ],
)
def test_a_changed_initial_value_takes_effect_after_a_resumption(
    rllib: None, tmp_path: Path, case: str, name: str, then: float, now: float
) -> None:
    def value_of(served: Served) -> float:
        (learner,) = served.policies.acting.learners.values()
        one: Any = learner
        return float(one.kl.coeff) if name == "kl_coeff" else one.temperature.log.exp().item()

    def plan(value: float, **fields: Any) -> ServerPlan:
        settings = {**plan_of(case).settings, name: value}
        return plan_of(case, settings=settings, **fields)

    first = play_and_save(plan(then), tmp_path / "saved", 9)
    values = []
    for value in (then, now):
        served = Served(plan(value, resume_from=str(tmp_path / "saved")))
        served.end()
        values.append(value_of(served))
    assert values == [value_of(first), pytest.approx(now)]


def test_a_replay_that_is_too_large_is_left_out_with_a_warning_and_filled_again(
    rllib: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plan = plan_of("DQN", keep_replay_mib=0)
    play_and_save(plan, tmp_path / "saved", 9)
    assert "saves no replay" in caplog.text
    about = json.loads((tmp_path / "saved" / "muxrl.json").read_text())
    assert "more than checkpoint.replay_max_mib (0)" in about["replay"]["left_out"]
    assert not (tmp_path / "saved" / "muxrl_replay.npz").exists()

    caplog.clear()
    second = Served(dataclasses.replace(plan, resume_from=str(tmp_path / "saved")))
    assert "continues with an empty replay" in caplog.text
    version = second.policies.acting.weights_seq_no
    second.play(9, 10)
    second.policies.save(tmp_path / "lost again")
    kept = dataclasses.replace(plan, keep_replay_mib=1)
    second.policies._plan = kept
    second.policies.save(tmp_path / "kept")
    second.play(10, 12)  # 24 steps; learning needs 32
    assert second.policies.acting.weights_seq_no == version
    second.play(12, 14)
    assert second.policies.acting.weights_seq_no > version
    second.end()

    for saved, num_needed in (("kept", 3), ("lost again", 4)):
        third = Served(dataclasses.replace(kept, resume_from=str(tmp_path / saved)))
        third.play(10, 10 + num_needed - 1)
        assert third.policies.acting.weights_seq_no == version, saved
        third.play(10 + num_needed - 1, 11 + num_needed)
        assert third.policies.acting.weights_seq_no > version, saved
        third.end()


def test_an_episode_that_is_open_is_left_out_and_what_has_ended_is_learned(
    rllib: None, tmp_path: Path
) -> None:
    first = Served(plan_of("PPO"))
    first.play(0, 3)  # 24 steps; a batch has 32
    store = first.policies.store
    store.accept(StartEpisode("open"), 0.0)
    first._act(store.accept(Step("open", 0, dict.fromkeys("ab", np.zeros(2, np.float32))), 0.0))
    first.policies.save(tmp_path / "saved")
    first.end()
    second = Served(plan_of("PPO", resume_from=str(tmp_path / "saved")))
    assert second.policies.store.num_open == 0
    assert second.policies.acting.weights_seq_no == 0
    second.play(3, 4)
    assert second.policies.acting.weights_seq_no > 0, "three episodes of before, and one more"
    second.end()


def test_a_frozen_server_draws_what_it_would_have_drawn(rllib: None, tmp_path: Path) -> None:
    plan = plan_of("PPO")
    moves = {a: dataclasses.replace(p, action_space=Box((2,))) for a, p in plan.agents.items()}
    plan = dataclasses.replace(plan, agents=moves)
    play_and_save(plan, tmp_path / "ppo")
    settings = {"checkpoint": str(tmp_path / "ppo"), "should_explore": True}
    frozen = dataclasses.replace(plan, algorithm="FROZEN", settings=settings, model={})

    def draw(policies: Any, number: int) -> Any:
        policies.store.accept(StartEpisode(f"e{number}"), 0.0)
        seen = dict.fromkeys("ab", np.zeros(2, np.float32))
        pending = policies.store.accept(Step(f"e{number}", 0, seen), 0.0)
        return actions_of(policies.acting, pending)

    torch.manual_seed(1)
    first = make_policies(frozen, pytest.fail)
    expected = [draw(first, 0)]
    before = torch.get_rng_state()
    first.save(tmp_path / "saved")
    expected.append(draw(first, 1))
    assert torch.equal(torch.get_rng_state(), before), "a learner beside it draws the same"

    torch.manual_seed(2)
    assert_same(draw(make_policies(frozen, pytest.fail), 0), expected[0])
    going_on = dataclasses.replace(frozen, resume_from=str(tmp_path / "saved"))
    assert_same(draw(make_policies(going_on, pytest.fail), 1), expected[1])
    with pytest.raises(AssertionError):
        assert_same(*expected)
