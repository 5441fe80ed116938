"""Agents that act with the weights that their server began with, beside agents that act as
learned."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.servers.acted import played
from tests.servers.resumable import Served, assert_same, plan_of, play_and_save, scramble
from tests.servers.scripted_store import ScriptedStore, make_plan
from tests.servers.untrained import actors_of, asked

from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.messages import StartEpisode
from muxrl.servers.acting import Acted
from muxrl.servers.agents.log_probs import DISTRIBUTION
from muxrl.servers.agents.seating import Seating

AGENTS = ["a", "b"]
T_PLAYED = 3


def answers(served: Served, episode_id: str, untrained: list[str], explore: bool = False) -> Any:
    """Plays an episode for evaluation on scripted observations; returns what is chosen for each
    part.

    The result has an entry for each step.
    """
    rng = np.random.default_rng(0)
    seen = [{agent: rng.random(2, np.float32) for agent in AGENTS} for _ in range(T_PLAYED)]
    how = {"mode": "eval", "should_explore": explore, "untrained": untrained}
    steps = played(served.policies, episode_id, seen, **how)
    return [[(one.actions, one.outputs, one.states) for one in s.blocks[0].chosen] for s in steps]


@pytest.mark.parametrize(
    "case", ["PPO", "PPO with an LSTM", "MAPPO", "DQN", "SAC", "IMPALA", "QMIX", "PPO, normalised"]
)
def test_after_training_all_act_as_before_it(case: str, tmp_path: Path) -> None:
    served = Served(plan_of(case, keeps_untrained=True))
    before = answers(served, "before", [])
    weights = served.policies.acting.get("weights")
    served.play(0, 14)
    served.end()
    assert served.policies.acting.weights_seq_no > 0
    assert_same(served.policies.acting.untrained, weights)
    if "normalised" not in case:  # otherwise the statistics that both read have changed
        assert_same(answers(served, "untrained", AGENTS), before)
    learned = answers(served, "learned", [])
    with pytest.raises(AssertionError):
        assert_same(served.policies.acting.get("weights"), weights)
    # Untrained steps in between do not change the others.
    answers(served, "again", AGENTS)
    assert_same(answers(served, "once more", []), learned)


def test_one_agent_may_act_untrained_and_the_other_as_learned() -> None:
    served = Served(plan_of("PPO", keeps_untrained=True))
    before = answers(served, "before", [])
    served.play(0, 9)
    served.end()
    learned, mixed = answers(served, "learned", []), answers(served, "mixed", ["b"])
    for then, now, both in zip(before, learned, mixed, strict=True):
        # Each is one row of another pass, so that its last bits may differ.
        (first,), (second,) = ([one[1][DISTRIBUTION][0] for one in of] for of in (now, then))
        for expected, (_, outputs, _) in zip((first[0], second[1]), both, strict=True):
            np.testing.assert_allclose(outputs[DISTRIBUTION][0, 0], expected, rtol=1e-5)
        assert not np.allclose(first[0], second[0])


@pytest.mark.parametrize("is_kept", [True, False], ids=["in the checkpoint", "by the seed"])
def test_a_server_that_goes_on_has_the_weights_of_its_run_s_beginning(
    tmp_path: Path, is_kept: bool
) -> None:
    first = Served(plan_of("PPO", keeps_untrained=is_kept))
    before = answers(first, "before", [])
    first.play(0, 9)
    first.policies.save(tmp_path / "saved")
    first.end()
    scramble()
    plan = plan_of("PPO", keeps_untrained=True, resume_from=str(tmp_path / "saved"))
    second = Served(plan)
    second.end()
    assert_same(answers(second, "untrained", AGENTS), before)


def test_initialized_weights_are_those_that_it_began_with_after_a_restart_too(
    tmp_path: Path,
) -> None:
    teacher = play_and_save(plan_of("PPO"), tmp_path / "teacher", 9)
    taught = answers(teacher, "taught", [])
    plan = plan_of("PPO", keeps_untrained=True, seed=5)
    first = Served(dataclasses.replace(plan, initialize_from=str(tmp_path / "teacher")))
    first.play(20, 29)
    first.policies.save(tmp_path / "saved")
    first.end()
    assert_same(answers(first, "began", AGENTS), taught)
    second = Served(dataclasses.replace(plan, resume_from=str(tmp_path / "saved")))
    second.end()
    assert_same(answers(second, "began", AGENTS), taught)


def test_the_untrained_copy_is_made_when_it_is_wanted_and_draws_no_random_numbers() -> None:
    plan = make_plan("a")
    seats = Seating().make_seats(plan)
    served = actors_of("PPO", seats, plan)
    observations = np.array([[0.1, -0.4]], np.float32)

    def act(**how: bool) -> Acted:
        return served.answer(asked(seats["a"], plan.agents, observations, **how))

    served.keep_untrained()
    before = act()
    other = actors_of("PPO", seats, dataclasses.replace(plan, seed=1))
    served.load(other.get("weights"), 3)
    assert served._untrained_actors is None
    drawn = torch.get_rng_state()
    after = act(is_untrained=True)
    assert served.weights_seq_no == 3
    assert_same(after.actions, before.actions)
    assert_same(after.outputs, before.outputs)
    assert torch.equal(torch.get_rng_state(), drawn)
    with pytest.raises(AssertionError):
        assert_same(act().outputs, before.outputs)


def refusal(store: ScriptedStore, mode: Any, untrained: list[str]) -> str:
    with pytest.raises(ValueMismatch) as refused:
        store.store.accept(StartEpisode("e", mode, None, untrained), 0.0)
    assert store.store.num_open == 0
    return str(refused.value)


def test_agents_that_cannot_act_untrained_are_refused() -> None:
    store = ScriptedStore(make_plan("ab"), seating=Seating())
    assert "has not kept the weights" in refusal(store, "eval", ["a"])
    store = ScriptedStore(make_plan("ab", keeps_untrained=True), seating=Seating())
    assert "would learn from agents that act untrained" in refusal(store, "train", ["a"])
    assert "agent 'c' is to act untrained" in refusal(store, "eval", ["a", "c"])
    store = ScriptedStore(make_plan("abc", {"team": ("a", "b")}, keeps_untrained=True))
    assert "members of group 'team' act together" in refusal(store, "eval", ["a"])
    store.store.accept(StartEpisode("e", "eval", None, ["a", "b"]), 0.0)
    assert store.store.num_open == 1
