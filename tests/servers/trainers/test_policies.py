"""Trainers on a server: the rows they act on, the pieces they learn from, and how they resume."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from tests.compliance.real_servers import running, wait_until
from tests.servers.acted import act_on, actions_of
from tests.servers.packing import rows_of
from tests.servers.scripted_store import make_plan, seen
from tests.servers.trainers.brought import Blocking

from muxrl.client import PolicyClient
from muxrl.protocol.messages import EndEpisode, StartEpisode, Step
from muxrl.protocol.spaces import Box
from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE
from muxrl.servers.config import ServerPlan
from muxrl.servers.fixed_policies import find_fixed
from muxrl.servers.fixed_policies.loaded_policies import load_checkpoint
from muxrl.servers.server import make_policies
from muxrl.servers.setting_values import AlgorithmProblem
from muxrl.servers.trainers.failures import TrainerFailed
from muxrl.servers.trainers.policies import TrainerPolicies
from muxrl.servers.training.policies import ServerProblem

HERE = "tests.servers.trainers.brought"
PATIENCE_S = 20.0


def plan_of(name: str = "Counting", **fields: Any) -> ServerPlan:
    plan = dataclasses.replace(make_plan("ab"), algorithm=f"{HERE}:{name}")
    return dataclasses.replace(plan, **fields)


_MADE: list[TrainerPolicies] = []


@pytest.fixture(autouse=True)
def _end_all() -> Iterator[None]:
    yield
    while _MADE:
        _MADE.pop().finish(PATIENCE_S)


def policies_of(plan: ServerPlan, failures: list[str] | None = None) -> TrainerPolicies:
    failed = pytest.fail if failures is None else failures.append
    made = make_policies(plan, failed)
    assert isinstance(made, TrainerPolicies)
    _MADE.append(made)
    return made


def play(
    policies: Any,
    episode_id: str,
    num_steps: int = 4,
    agents: str = "ab",
    reward: Callable[[int], float] = float,
    **start: Any,
) -> list[dict[str, Any]]:
    """Plays an episode, waiting at the gate as a frame does; returns the actions.

    The reward before step t is ``reward(t)``, that of the last step ``reward(9)``.
    """
    store, now = policies.store, time.monotonic()
    store.accept(StartEpisode(episode_id, **start), now)
    sent = []
    for t in range(num_steps):
        rewards = dict.fromkeys(agents, reward(t)) if t else {}
        item = Step(episode_id, t, {a: seen(a, t) for a in agents}, rewards=rewards)
        pending: Any = store.accept(item, now)
        deadline = time.monotonic() + PATIENCE_S
        while pending.blocks[0].mode.is_training and not policies.feed.is_open:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        sent.append(dict(actions_of(policies.acting, pending)))
    rewards, ends = dict.fromkeys(agents, reward(9)), dict.fromkeys(agents, True)
    store.accept(EndEpisode(episode_id, num_steps, rewards=rewards, terminations=ends), now)
    store.finish_frame()
    return sent


def wait_for(policies: TrainerPolicies, iteration: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while policies.iteration < iteration or not policies.feed.is_open:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def learned(plan: ServerPlan, *episodes: str) -> TrainerPolicies:
    """Returns policies that have learned from these episodes, one by one."""
    policies = policies_of(plan)
    policies.start()
    for number, episode_id in enumerate(episodes, 1):
        play(policies, episode_id)
        wait_for(policies, number)
    assert policies.finish(PATIENCE_S)
    return policies


def test_a_trainer_acts_and_learns_and_its_metrics_are_recorded() -> None:
    policies = policies_of(plan_of())
    policies.start()
    first = play(policies, "e1")
    wait_for(policies, 1)
    second = play(policies, "e2")
    wait_for(policies, 2)
    assert policies.finish(PATIENCE_S)
    assert first == [{"a": 0, "b": 0}] * 4
    assert second[0] == {"a": 1, "b": 1}
    records = policies.drain_records()
    assert [record["loss"] for record in records] == [1.0, 0.5]
    assert records[1]["learner"] == {"default": {"loss": 0.5, "rows": 16.0}}
    assert [record["weights_seq_no"] for record in records] == [1, 2]
    assert policies.policy_lag == (0.0, 0)


def test_recurrent_states_in_arrays_come_back_by_agent() -> None:
    trainer: Any = learned(plan_of("Remembering"), "e1").acting.learners["default"]
    assert [one.outputs["num"].tolist() for one in trainer.seen] == [[[0], [1], [2], [3]]] * 2


def test_a_trainer_learns_from_what_was_played() -> None:
    policies = learned(plan_of(), "e1")
    trainer: Any = policies.acting.learners["default"]
    one, other = trainer.seen
    assert (one.agent_id, other.agent_id) == ("a", "b")
    np.testing.assert_array_equal(one.observations[:4], [seen("a", t) for t in range(4)])
    assert one.observations.shape == (5, 2)
    assert one.rewards.tolist() == [1.0, 2.0, 3.0, 9.0]
    assert one.actions.tolist() == [0, 0, 0, 0]
    assert one.outputs["drawn"].shape == (4,)
    assert not one.outputs["is_logged"].any()
    assert (one.is_terminated, one.is_truncated, one.masks) == (True, False, None)


def test_only_learning_gets_the_global_state(tmp_path: Path) -> None:
    """Every observation of a piece has its state; policies that only act get none, and need
    none."""
    policies = policies_of(plan_of("WithState", state_size=3))
    given = given_to(policies)
    policies.start()
    store, now = policies.store, time.monotonic()
    store.accept(StartEpisode("e"), now)
    for t in range(4):
        state = np.full(3, float(t), np.float32)
        pending = store.accept(Step("e", t, {a: seen(a, t) for a in "ab"}, state=state), now)
        actions_of(policies.acting, pending)
    last = {a: seen(a, 4) for a in "ab"}
    end = EndEpisode("e", 4, final_observations=last, state=np.full(3, 4.0), is_truncated=True)
    store.accept(end, now)
    store.finish_frame()
    wait_for(policies, 1)
    assert given[0].observations.shape == (2, 2)
    (record,) = policies.drain_records()
    assert record["learner"]["default"]["state"] == 0 + 1 + 2 + 3 + 4
    policies.save(tmp_path / "saved", PATIENCE_S)
    assert load_checkpoint(tmp_path / "saved")["a"](seen("a", 0)) == 1
    settings = {"checkpoint": str(tmp_path / "saved"), "should_explore": False}
    frozen = dataclasses.replace(make_plan("ab"), algorithm="FROZEN", settings=settings)
    assert play(make_policies(frozen, pytest.fail), "e")[0] == {"a": 1, "b": 1}


def test_a_loaded_policy_has_the_probabilities_and_values_of_its_class(tmp_path: Path) -> None:
    """Probabilities and values are checked; a class without these methods is named in the refusal.

    `Telling` has no recurrent state, so that it remembers nothing unless frames are stacked.
    """

    def load(name: str, **fields: Any) -> Any:
        policies = policies_of(plan_of(name, **fields))
        policies.acting.learners["default"].num_updates = 2  # type: ignore[attr-defined]
        policies.save(tmp_path / name, PATIENCE_S)
        return load_checkpoint(tmp_path / name)["a"]

    policy, observed = load("Telling"), seen("a", 3)
    assert policy.probabilities(observed).tolist() == [0.5, 0.25, 0.25]
    assert policy.value(observed) == pytest.approx(observed.sum() + 2)
    assert not policy.remembers
    assert load("Telling", frame_stack=2).remembers
    wrong = load("TellsTooMuch")
    with pytest.raises(
        TrainerFailed, match=r"TellsTooMuch.probabilities .*: expected a row of 3 th"
    ):
        wrong.probabilities(observed)
    with pytest.raises(TrainerFailed, match=r"TellsTooMuch.value .*: expected one finite num"):
        wrong.value(observed)
    silent = load("Counting")
    assert silent.remembers
    with pytest.raises(AlgorithmProblem, match=r"no probabilities .*with a method probabilities\("):
        silent.probabilities(observed)
    with pytest.raises(
        AlgorithmProblem, match=r"no critic can value .* with a method value\(rows\)"
    ):
        silent.value(observed)


def test_states_go_with_their_agent_and_end_with_the_episode() -> None:
    policies = policies_of(plan_of())
    store, now = policies.store, time.monotonic()
    store.accept(StartEpisode("e"), now)
    given = given_to(policies)
    for t in range(3):
        pending = store.accept(Step("e", t, {"a": seen("a", t)}), now)
        actions_of(policies.acting, pending)
    assert [rows.states for rows in given] == [[None], [1], [2]]


def given_to(policies: TrainerPolicies) -> list[Any]:
    """Returns a list to which the rows are added that the trainer acts on."""
    trainer: Any = policies.acting.learners["default"]
    given: list[Any] = []
    act = trainer.act
    trainer.act = lambda rows: given.append(rows) or act(rows)
    return given


@pytest.mark.parametrize("in_rows", [False, True])
def test_a_trainer_may_write_into_its_arguments_and_reuse_its_results(in_rows: bool) -> None:
    plan = plan_of("ReusesItsArrays")
    policies = policies_of(plan)
    store, now = policies.store, time.monotonic()
    given = given_to(policies)
    store.accept(StartEpisode("e"), now)
    for t in range(4):
        item = Step("e", t, {a: seen(a, t) for a in "ab"}, {"a": 1.0, "b": 0.5} if t else {})
        if in_rows:
            rows = rows_of(plan.agents, [item])
            act_on(policies.acting, store.accept_rows(rows, now))
        else:
            act_on(policies.acting, store.accept(item, now))
    assert [np.ravel(rows.states).tolist() for rows in given[1:]] == [[1, 1], [2, 2], [3, 3]]
    policies.start()
    store.accept(EndEpisode("e", 4, terminations=dict.fromkeys("ab", True)), now)
    store.finish_frame()
    wait_for(policies, 1)
    trainer: Any = policies.acting.learners["default"]
    assert len(trainer.seen) == 2
    for one in trainer.seen:
        np.testing.assert_array_equal(
            one.observations[:4], [seen(one.agent_id, t) for t in range(4)]
        )
        assert len(set(one.outputs["drawn"].ravel().tolist())) == 4


def test_an_action_that_is_not_finite_is_refused() -> None:
    plan = plan_of("Infinite")
    agents = {a: dataclasses.replace(one, action_space=Box((1,))) for a, one in plan.agents.items()}
    policies = policies_of(dataclasses.replace(plan, agents=agents))
    says = "Infinite.act of policy 'default': expected finite numbers, got inf for agent 'b'"
    with pytest.raises(TrainerFailed, match=says):
        play(policies, "e")


def team_plan(name: str = "OfTeams", **fields: Any) -> ServerPlan:
    plan = plan_of(name, groups={"team": ("a", "b")}, late_members="allow", **fields)
    agents = {a: dataclasses.replace(agent, group="team") for a, agent in plan.agents.items()}
    return dataclasses.replace(plan, agents=agents)


def test_evaluation_draws_from_a_generator_of_its_own() -> None:
    def drawn(*, evaluates: bool) -> list[int]:
        policies = policies_of(plan_of())
        if evaluates:
            play(policies, "x", mode="eval", should_explore=True)
        play(policies, "e1", num_steps=3)
        (chunk,) = policies.store.pending
        return [int(n) for one in chunk.trajectories for n in one.outputs["drawn"]]

    assert drawn(evaluates=True) == drawn(evaluates=False)


def test_who_cannot_act_while_it_learns_holds_evaluations_and_hears_all() -> None:
    Blocking.may_end.clear()
    with (
        running(plan_of("Blocking")) as server,
        ThreadPoolExecutor() as threads,
        PolicyClient(server.address) as training,
        PolicyClient(server.address) as client,
    ):
        episode_id = training.start_episode()
        for t in range(5):  # the fifth step completes a batch, and waits
            step = threads.submit(training.get_action, episode_id, {"a": seen("a", t)})
            if t < 4:
                step.result(PATIENCE_S)
        wait_until(lambda: server.policies.feed.activity.learning_s > 0.0)
        evaluated = client.start_episode(training_enabled=False)
        asked = threads.submit(client.get_action, evaluated, {"a": seen("a", 0)})
        for _ in range(5):
            assert requests.get(f"http://{server.address}/v1/health", timeout=5.0).ok
        assert not asked.done()
        assert not step.done()
        Blocking.may_end.set()
        assert asked.result(PATIENCE_S) == step.result(PATIENCE_S) == {"a": 1}


def test_untrained_agents_act_beside_learned_ones() -> None:
    policies = learned(plan_of(keeps_untrained=True), "e1")
    sent = play(policies, "x", num_steps=1, mode="eval", untrained=["a"])
    assert sent == [{"a": 0, "b": 1}]


@pytest.mark.parametrize("name", ["Counting", "WithCopies"])
def test_a_trainer_resumes_where_it_was_saved(name: str, tmp_path: Path) -> None:
    whole = policies_of(plan_of(name))
    whole.start()
    play(whole, "e1")
    wait_for(whole, 1)
    play(whole, "e2", num_steps=3)
    play(whole, "evaluated", mode="eval")  # an evaluation draws from a generator of its own
    whole.save(tmp_path / "saved")
    expected = play(whole, "e3")
    wait_for(whole, 2)
    whole.finish(PATIENCE_S)

    resumed = policies_of(plan_of(name, resume_from=str(tmp_path / "saved")))
    assert resumed.iteration == 1
    assert resumed.store.counts.num_env_steps == 7
    resumed.start()
    assert play(resumed, "e3") == expected
    wait_for(resumed, 2)
    resumed.finish(PATIENCE_S)
    ours: Any = resumed.acting.learners["default"]
    theirs: Any = whole.acting.learners["default"]
    assert ours.state() == theirs.state()
    assert resumed.acting.get_random_state() == whole.acting.get_random_state()
    assert resumed.acting.weights_seq_no == whole.acting.weights_seq_no == 2


def test_a_default_that_has_changed_stays_what_it_was(tmp_path: Path) -> None:
    policies_of(plan_of()).save(tmp_path / "saved")
    note = tmp_path / "saved" / ABOUT_FILE
    about = json.loads(note.read_text())
    about["defaults"]["rate"] = 0.7
    note.write_text(json.dumps(about))
    resumed = policies_of(plan_of(resume_from=str(tmp_path / "saved")))
    trainer: Any = resumed.acting.learners["default"]
    assert trainer.rate == 0.7


def test_a_frozen_or_loaded_trainer_acts_as_it_was_saved(tmp_path: Path) -> None:
    policies_of(plan_of(settings={"start": 5})).save(tmp_path / "saved")
    settings = {"checkpoint": str(tmp_path / "saved")}
    fixed = find_fixed("FROZEN")
    assert fixed is not None
    algorithm = fixed(settings, {})
    plan = plan_of(algorithm="FROZEN", settings=settings)
    plan = dataclasses.replace(plan, algorithm="FROZEN")
    assert list(algorithm.find_problems(plan)) == []
    assert play(algorithm.make(plan), "e1", num_steps=1) == [{"a": 2, "b": 2}]
    assert load_checkpoint(tmp_path / "saved")["a"](seen("a", 0)) == 2


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("FailsToLearn", "ArithmeticError: the loss is gone"),
        ("SaysItsLoss", "expected a number as 'loss', got str"),
    ],
)
def test_an_error_in_learn_ends_the_training_by_name(name: str, sentence: str) -> None:
    failures: list[str] = []
    policies = policies_of(plan_of(name), failures)
    policies.start()
    play(policies, "e1")
    deadline = time.monotonic() + PATIENCE_S
    while not failures:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    policies.finish(PATIENCE_S)
    assert failures == [
        f"training failed: TrainerFailed: {HERE}:{name}.learn of policy 'default': {sentence}"
    ]


def test_a_state_that_cannot_be_saved_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ServerProblem, match="which a checkpoint cannot hold"):
        policies_of(plan_of("KeepsObjects")).save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_rewards_are_scaled_and_observations_normalised() -> None:
    plan = plan_of(normalize_rewards=True, normalize_observations=True)
    policies = learned(plan, "e0", "e1", "e2")
    trainer: Any = policies.acting.learners["default"]
    last = trainer.seen[-1]
    assert np.abs(last.observations).max() < 3.0
    assert last.rewards.max() < 9.0


# --- teams -----------------------------------------------------------------------------------


@pytest.mark.parametrize("state_size", [None, 5])
def test_a_team_is_a_row_with_its_members_and_who_is_present(
    state_size: int | None, tmp_path: Path
) -> None:
    policies = policies_of(team_plan(state_size=state_size))
    given = given_to(policies)
    policies.start()
    store, now = policies.store, time.monotonic()
    store.accept(StartEpisode("e"), now)
    sent = []
    for t, here in enumerate(["a", "ab", "b", "ab"]):
        step = Step(
            "e", t, {a: seen(a, t) for a in here}, dict.fromkeys(here, 1.0) if t else {},
            logged_actions={"b": 2} if t == 3 else {},
            state=None if state_size is None else np.full(5, float(t)),
        )  # fmt: skip
        pending = store.accept(step, now)
        sent.append(actions_of(policies.acting, pending))
    state = {} if state_size is None else {"state": np.full(5, 4.0)}
    ends = dict.fromkeys("ab", True)
    store.accept(EndEpisode("e", 4, rewards={"a": 1.0}, terminations=ends, **state), now)
    store.finish_frame()
    wait_for(policies, 1)
    assert sent == [{"a": 0}, {"a": 0, "b": 0}, {"b": 0}, {"a": 0, "b": 2}]
    assert [rows.present.tolist() for rows in given] == [[[1, 0]], [[1, 1]], [[0, 1]], [[1, 1]]]
    assert [rows.states for rows in given] == [[None], [1], [2], [3]]
    assert given[0].masks.tolist() == [[[1, 1, 1], [1, 0, 0]]]
    trainer: Any = policies.acting.learners["default"]
    (one,) = trainer.seen
    assert one.seat_id == "team"
    assert one.present[:4].tolist() == [[1, 0], [1, 1], [0, 1], [1, 1]]
    assert one.observations.shape == (5, 2, 2)
    assert one.observations[0].tolist() == [seen("a", 0).tolist(), [0, 0]]
    assert one.actions.tolist() == [[0, 0], [0, 0], [0, 0], [0, 2]]
    assert one.outputs["is_logged"].tolist() == [[False, False]] * 3 + [[False, True]]
    assert one.rewards.tolist() == [2.0, 1.0, 2.0, 1.0]
    # If no state is sent, the members' observations and who has departed stand for it.
    assert one.states.shape == (5, trainer.policy.state_size) == (5, state_size or 6)
    policies.save(tmp_path / "saved")
    resumed = policies_of(team_plan(state_size=state_size, resume_from=str(tmp_path / "saved")))
    assert resumed.acting.get("state")["default"]["num_rows"] == 4
    with pytest.raises(AlgorithmProblem, match="OfTeams acts for a whole team at once"):
        load_checkpoint(tmp_path / "saved")  # it would have to act for each member alone
    settings = {"checkpoint": str(tmp_path / "saved"), "should_explore": False}
    frozen = dataclasses.replace(team_plan(settings=settings), algorithm="FROZEN")
    fixed = find_fixed("FROZEN")
    assert fixed is not None
    assert list(fixed(settings, {}).find_problems(frozen)) == []
    assert play(make_policies(frozen, pytest.fail), "e", num_steps=1) == [{"a": 1, "b": 1}]
