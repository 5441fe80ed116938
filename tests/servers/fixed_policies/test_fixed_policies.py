"""Policies that do not learn: how they are called, their actions, and which are refused."""

from __future__ import annotations

import dataclasses
import uuid
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from tests.servers.acted import played
from tests.servers.scripted_store import make_plan

from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.spaces import Box, DictSpace, Discrete, MultiBinary, MultiDiscrete, Space
from muxrl.servers.config import ServerPlan
from muxrl.servers.fixed_policies import FIXED, FixedAlgorithm, find_fixed
from muxrl.servers.fixed_policies.plain import PolicyFailed
from muxrl.servers.fixed_policies.policies import FixedPolicies
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.training.policies import ServerProblem

SEES = Box((2,))
FIVE = Discrete(5)
SEEN = np.zeros(2, np.float32)


def plan(algorithm: str, acts: Space, sees: Space = SEES, **settings: Any) -> ServerPlan:
    given: dict[str, Any] = {"algorithm": algorithm, "settings": settings}
    seen = dict.fromkeys("ab", sees)
    return make_plan(seen, acts=acts, server_id="fixed", seed=7, **given)


def resumed(plan: ServerPlan, checkpoint: Path) -> ServerPlan:
    return dataclasses.replace(plan, resume_from=str(checkpoint))


def configured(name: str, settings: dict[str, Any]) -> FixedAlgorithm:
    fixed = find_fixed(name)
    assert fixed is not None
    return fixed(settings, {})


def make(plan: ServerPlan) -> FixedPolicies:
    return configured(plan.algorithm, plan.settings).make(plan)


def play(policies: FixedPolicies, observations: list[dict[str, Any]], **start: Any) -> list[Any]:
    """Plays an episode; returns its actions, a dict for each step."""
    steps = played(policies, uuid.uuid4().hex, observations, {"a": 1.0}, **start)
    return [step.answer().actions for step in steps]


# --- policies that the tests name by path ---------------------------------------------------


def make_memory(agent_id: str, observation_space: Any, action_space: Any, seed: int) -> Any:
    """Makes a policy whose action is the number of its own steps so far."""
    assert isinstance(observation_space, gymnasium.spaces.Box)
    assert isinstance(action_space, gymnasium.spaces.Discrete)
    seen: list[Any] = []

    def act(observation: Any) -> int:
        seen.append(observation)
        return len(seen) - 1

    return act


def make_constant(
    agent_id: str, observation_space: Any, action_space: Any, seed: int, *, action: Any
) -> Any:
    return lambda observation: action


def make_scribbler(
    agent_id: str, observation_space: Any, action_space: Any, seed: int, *, action: int
) -> Any:
    """Makes a policy that writes into everything that it observes."""

    def act(observation: Any) -> int:
        observation["observation"] += 1.0
        observation["action_mask"][:] = 1
        return action

    return act


def make_seeded(agent_id: str, observation_space: Any, action_space: Any, seed: int) -> Any:
    return lambda observation: seed % 1000


def make_broken(agent_id: str, observation_space: Any, action_space: Any, seed: int) -> Any:
    def act(observation: Any) -> int:
        raise ZeroDivisionError("no idea")

    return act


def make_nothing(agent_id: str, observation_space: Any, action_space: Any, seed: int) -> None:
    return None


NOT_CALLABLE = 3


def scripted(name: str, acts: Space = FIVE, sees: Space = SEES, **kwargs: Any) -> ServerPlan:
    path = f"{__name__}:{name}"
    return plan("SCRIPTED", acts, sees, policy=path, kwargs=kwargs)


# --- random ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("acts", "num"), [(Discrete(3, start=4), 3), (MultiDiscrete((2, 3)), 6), (MultiBinary(2), 4)]
)
def test_random_draws_every_action(acts: Space, num: int) -> None:
    actions = play(make(plan("RANDOM", acts)), [{"a": SEEN}] * 400)
    assert len({tuple(np.ravel(one["a"])) for one in actions}) == num


def test_random_covers_a_box() -> None:
    actions = play(make(plan("RANDOM", Box((2,), "float32", -1, 3))), [{"a": SEEN}] * 400)
    table = np.stack([one["a"] for one in actions])
    assert -1 <= table.min() < table.max() <= 3
    np.testing.assert_allclose(table.mean(axis=0), 1.0, atol=0.25)


def test_random_follows_masks() -> None:
    sees = DictSpace({"observation": Box((2,)), "action_mask": Box((4,), "int8", 0, 1)})
    policies = make(plan("RANDOM", Discrete(4, start=1), sees))
    seen = {"observation": SEEN, "action_mask": np.array([0, 1, 0, 1], np.int8)}
    actions = [a["a"] for a in play(policies, [{"a": seen}] * 60)]
    assert set(actions) == {2, 4}


def test_a_mask_that_forbids_everything_is_named() -> None:
    sees = DictSpace({"observation": Box((2,)), "action_mask": Box((4,), "int8", 0, 1)})
    policies = make(plan("RANDOM", Discrete(4), sees))
    seen = {"observation": SEEN, "action_mask": np.zeros(4, np.int8)}
    with pytest.raises(ValueMismatch, match=r"mask of agent 'a' forbids every action"):
        play(policies, [{"a": seen}])


def test_training_draws_the_same_with_and_without_evaluation_in_between() -> None:
    observations = [{"a": SEEN, "b": SEEN}] * 20
    alone, mixed = (make(plan("RANDOM", Discrete(100))) for _ in range(2))
    expected = [play(alone, observations) for _ in range(3)]
    found = []
    for _ in range(3):
        found.append(play(mixed, observations))
        play(mixed, observations, mode="eval")
    assert found == expected


@pytest.mark.parametrize("what", ["random", "scripted"])
def test_evaluations_of_one_seed_act_alike_whatever_was_played_before(what: str) -> None:
    given = plan("RANDOM", Discrete(1000))
    if what == "scripted":
        given = scripted("make_seeded", Discrete(1000))
    policies = make(given)
    steps = [{"a": SEEN, "b": SEEN}] * 3
    first = [play(policies, steps, mode="eval", seed=seed) for seed in range(4)]
    again = [play(policies, steps, mode="eval", seed=seed) for seed in range(4)]
    assert again == first
    assert len({acted[0][agent] for acted in first for agent in "ab"}) == 8
    trained = [play(policies, steps, seed=0) for _ in range(2)]
    assert trained[0] != trained[1], "what is trained on is drawn anew"


# --- scripted -------------------------------------------------------------------------------


def test_policies_live_as_long_as_their_episode() -> None:
    policies = make(scripted("make_memory"))
    steps = [{"a": SEEN, "b": SEEN}, {"b": SEEN}, {"a": SEEN, "b": SEEN}]
    for _ in range(2):
        assert play(policies, steps) == [{"a": 0, "b": 0}, {"b": 1}, {"a": 1, "b": 2}]


def test_every_episode_and_agent_has_its_own_seed() -> None:
    policies = make(scripted("make_seeded", Discrete(1000)))
    seeds = [tuple(play(policies, [{"a": SEEN, "b": SEEN}])[0].values()) for _ in range(4)]
    assert len({seed for pair in seeds for seed in pair}) == 8
    again = make(scripted("make_seeded", Discrete(1000)))
    assert tuple(play(again, [{"a": SEEN, "b": SEEN}])[0].values()) == seeds[0]


def test_a_logged_action_is_used_and_the_policy_still_called() -> None:
    policies = make(scripted("make_memory"))
    first, second = played(policies, "e", [{"a": SEEN}] * 2, logged=[{"a": 4}, {}])
    assert first.answer().actions == {"a": 4}
    assert second.answer().actions == {"a": 1}


@pytest.mark.parametrize(
    ("acts", "action", "reason"),
    [
        (Discrete(3), 3, r"expected Discrete\(3\), got 3"),
        (Discrete(3), "left", r"expected Discrete\(3\), got str 'left'"),
        (Discrete(3), None, r"expected Discrete\(3\), got null"),
        (Box((2,), "float32", -1, 1), [0.5, 1.5], "is outside the bounds"),
        (Box((2,), "float32", -1, 1), [0.5], r"got shape \(1,\)"),
        (Box((2,), "float32", -1, 1), [0.5, float("nan")], "NaN at index"),
    ],
)
def test_a_wrong_action_is_named(acts: Space, action: Any, reason: str) -> None:
    policies = make(scripted("make_constant", acts, action=action))
    told = f"agent 'b' returned no action of its space at t=0: .*{reason}"
    with pytest.raises(PolicyFailed, match=told):
        play(policies, [{"b": SEEN}])


def test_a_policy_may_write_into_what_it_is_shown_and_the_mask_still_counts() -> None:
    sees = DictSpace({"observation": Box((2,)), "action_mask": Box((3,), "int8", 0, 1)})
    seen = {"observation": SEEN.copy(), "action_mask": np.array([1, 0, 1], np.int8)}
    for part in seen.values():  # read-only, as an array that came in a message
        part.flags.writeable = False
    policies = make(scripted("make_scribbler", Discrete(3), sees, action=2))
    assert play(policies, [{"a": seen}] * 2) == [{"a": 2}, {"a": 2}]
    policies = make(scripted("make_scribbler", Discrete(3), sees, action=1))
    with pytest.raises(PolicyFailed, match=r"one of \[0, 2\], got 1"):
        play(policies, [{"a": seen}])


def test_an_exception_of_a_policy_names_agent_and_step() -> None:
    policies = make(scripted("make_broken"))
    with pytest.raises(PolicyFailed, match=r"agent 'a' raised ZeroDivisionError: no idea, at t=0"):
        play(policies, [{"a": SEEN}])


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "needs the setting 'policy'"),
        ("no_colon", "must look like"),
        ("no.such.package:make", "cannot be imported: ModuleNotFoundError"),
        (f"{__name__}:make_memry", "has no 'make_memry'; did you mean 'make_memory'"),
        (f"{__name__}:NOT_CALLABLE", "is an object of int, which cannot be called"),
    ],
)
def test_an_unimportable_path_is_refused(path: str, reason: str) -> None:
    with pytest.raises(AlgorithmProblem) as refusal:
        configured("scripted", {"policy": path})
    assert reason in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "kwargs", "reason"),
    [
        ("make_memory", {"depth": 3}, "unexpected keyword argument 'depth'; it is called with"),
        ("make_constant", {}, "missing 1 required keyword-only argument: 'action'"),
        ("make_nothing", {}, "made None for agent 'a'; expected a function"),
    ],
)
def test_a_policy_that_cannot_be_made_is_refused_before_serving(
    name: str, kwargs: dict[str, Any], reason: str
) -> None:
    its_plan = scripted(name, **kwargs)
    (problem,) = configured("SCRIPTED", its_plan.settings).find_problems(its_plan)
    assert reason in problem


# --- all of them ----------------------------------------------------------------------------


@pytest.mark.parametrize("fixed", FIXED, ids=lambda fixed: fixed.name)
def test_unknown_settings_and_networks_are_refused(fixed: type[FixedAlgorithm]) -> None:
    with pytest.raises(AlgorithmProblem, match=f"{fixed.name} has no setting 'lr'"):
        fixed({"lr": 0.1}, {})
    with pytest.raises(AlgorithmProblem, match=r"leave out model \(fcnet_hiddens\)"):
        fixed({}, {"fcnet_hiddens": [8]})


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"checkpoint": ""}, "needs the setting 'checkpoint'"),
        ({"checkpoint": ["a", "b"]}, "must be the folder of one checkpoint, not ['a', 'b']"),
        ({"checkpoint": "x", "should_explore": "yes"}, "must be true or false, got the text 'yes'"),
        ({"checkpoint": "x", "policies": "default"}, "must be a mapping"),
        ({"checkpoint": "/no/such/folder"}, "no such folder"),
    ],
)
def test_wrong_settings_of_frozen_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(AlgorithmProblem) as refusal:
        configured("Frozen", settings)
    assert reason in str(refusal.value)


def test_fixed_policies_record_nothing_and_count_everything() -> None:
    policies = make(plan("RANDOM", Discrete(3)))
    for _ in range(3):
        play(policies, [{"a": SEEN, "b": SEEN}] * 5)
    play(policies, [{"a": SEEN, "b": SEEN}] * 5, mode="eval")
    counts = policies.store.counts
    assert (counts.num_env_steps, counts.num_agent_steps, counts.num_episodes) == (15, 30, 3)
    assert counts.episode_return_mean == 2.5
    assert policies.store.pending == []
    assert policies.feed.is_open
    assert policies.acting.weights_seq_no == 0
    assert policies.finish(0.0)


@pytest.mark.parametrize("num_before", [0, 3])
def test_a_resumed_fixed_policy_goes_on_with_the_actions_that_would_have_come(
    tmp_path: Path, num_before: int
) -> None:
    whole, first = make(plan("RANDOM", Discrete(3))), make(plan("RANDOM", Discrete(3)))
    for policies in (whole, first):
        for _ in range(num_before):
            play(policies, [{"a": SEEN, "b": SEEN}] * 5)
    assert first.save(tmp_path / "saved") == tmp_path / "saved"
    second = make(resumed(plan("RANDOM", Discrete(3)), tmp_path / "saved"))
    steps = [{"a": SEEN, "b": SEEN}] * 20
    assert play(second, steps) == play(whole, steps)
    assert second.store.counts == whole.store.counts


def test_a_fixed_policy_resumes_from_its_own_checkpoint_only(tmp_path: Path) -> None:
    make(plan("RANDOM", Discrete(3))).save(tmp_path / "saved")
    with pytest.raises(
        ServerProblem, match=r"cannot resume from .*action_space.* 3 in the checkpoint, 4 in"
    ):
        make(resumed(plan("RANDOM", Discrete(4)), tmp_path / "saved"))


def test_names_are_case_insensitive() -> None:
    assert [find_fixed(n.lower()) for n in ("RANDOM", "SCRIPTED", "FROZEN", "POOL")] == list(FIXED)
    assert find_fixed("PPO") is None
