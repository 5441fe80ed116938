"""Actions that were chosen elsewhere: what is recorded of them, and what each algorithm learns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.servers.acted import act_on, actions_of
from tests.servers.packing import answers_of, rows_of
from tests.servers.scripted_store import make_plan, seat_of, seen
from tests.servers.untrained import read_logged

from muxrl.protocol.messages import AnyItem, EndEpisode, StartEpisode, Step, StepRows
from muxrl.protocol.spaces import Box, Discrete, Space, TupleSpace
from muxrl.servers.agents.log_probs import LOG_PROB
from muxrl.servers.episodes.trajectories import separated
from muxrl.servers.lookup import find
from muxrl.servers.server import make_policies
from muxrl.servers.trainers.policies import TrainerPolicies

NUM_STEPS = 24
BATCH = {"train_batch_size_per_learner": NUM_STEPS, "lr": 0.01}
SETTINGS: dict[str, dict[str, Any]] = {
    "PPO": {**BATCH, "minibatch_size": 8, "num_epochs": 2},
    "A2C": BATCH,
    "MAPPO": {**BATCH, "num_epochs": 2},
    "IMPALA": BATCH,
    "APPO": BATCH,
    "DQN": {"rollout_fragment_length": NUM_STEPS},
    "SAC": {"rollout_fragment_length": NUM_STEPS},
}
LSTM = {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 5}
ON_POLICY = [
    ("PPO", {}), ("PPO", LSTM), ("A2C", {}), ("A2C", LSTM), ("MAPPO", {}), ("MAPPO", LSTM),
]  # fmt: skip
OFF_POLICY_CORRECTED = [("IMPALA", {}), ("IMPALA", LSTM), ("APPO", {}), ("APPO", LSTM)]


@contextmanager
def policies_of(
    name: str, model: dict[str, Any] | None = None, **settings: Any
) -> Iterator[TrainerPolicies]:
    is_team = find(name).seating.forms_teams
    plan = make_plan(
        groups={"team": ("a", "b")} if is_team else None,
        algorithm=name,
        settings={**SETTINGS.get(name, {}), **settings},
        model={} if is_team else {"fcnet_hiddens": [8], **(model or {})},
    )
    failures: list[str] = []
    policies = make_policies(plan, failures.append)
    assert isinstance(policies, TrainerPolicies)
    yield policies
    assert not failures


def play(policies: TrainerPolicies, logged: Any, log_probs: Any = None) -> None:
    """Plays one batch.

    Args:
        policies: that act and record.
        logged: returns the logged actions at t, by agent.
        log_probs: returns their log-probabilities at t, by agent; None: none is sent.
    """
    store = policies.store
    store.accept(StartEpisode("e"), 0.0)
    for t in range(NUM_STEPS):
        item = Step("e", t, {a: seen(a, t % 3) / 100 for a in "ab"}, {"a": 1.0 + t % 2, "b": -1.0})
        item.logged_actions = logged(t)
        if log_probs is not None:
            item.logged_log_probs = log_probs(t)
        actions = actions_of(policies.acting, store.accept(item, 0.0))
        assert actions.items() >= item.logged_actions.items()
    store.accept(EndEpisode("e", NUM_STEPS, rewards={"a": 3.0}), 0.0)
    store.finish_frame()


def parameters(policies: TrainerPolicies) -> dict[str, torch.Tensor]:
    learner: Any = policies.acting.learners["default"]
    return {name: value.clone() for name, value in learner.net.state_dict().items()}


def updated(
    name: str, model: dict[str, Any], logged: Any, log_probs: Any = None, **settings: Any
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Returns the parameters before and after an update."""
    with policies_of(name, model, **settings) as policies:
        before = parameters(policies)
        play(policies, logged, log_probs)
        played = [separated(one) for chunk in policies.feed.take() for one in chunk.trajectories]
        metrics = policies.acting.learners.learn("default", played, 0)
        after = parameters(policies)
    assert metrics
    assert all(map(np.isfinite, metrics.values()))
    assert all(value.isfinite().all() for value in after.values())
    return before, after


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


def all_logged(action: int) -> Any:
    return lambda t: {"a": action, "b": action}


def half_logged(action: int) -> Any:
    return lambda t: {"a": action} if t % 2 else {}


@pytest.mark.parametrize(("name", "model"), ON_POLICY)
def test_logged_actions_teach_on_policy_algorithms_values_and_not_the_policy(
    name: str, model: dict[str, Any]
) -> None:
    if name != "MAPPO":  # MAPPO's networks are always two
        model = {**model, "vf_share_layers": False}
    # Entropy and KL divergence do not depend on the action, and Adam would enlarge rounding errors.
    others = {"entropy_coeff": 0.0, **({"use_kl_loss": False} if name == "PPO" else {})}
    before, after = updated(name, model, all_logged(1), **others)
    names = changed(before, after)
    assert not [n for n in names if n.startswith(("pi", "actor"))]
    assert [n for n in names if n.startswith(("vf", "critic"))]


@pytest.mark.parametrize(("name", "model"), OFF_POLICY_CORRECTED)
def test_logged_actions_without_probabilities_teach_nothing_with_v_trace(
    name: str, model: dict[str, Any]
) -> None:
    assert not changed(*updated(name, model, all_logged(1), entropy_coeff=0.0))


@pytest.mark.parametrize(("name", "model"), ON_POLICY + OFF_POLICY_CORRECTED)
def test_the_update_is_the_same_whatever_action_was_logged(
    name: str, model: dict[str, Any]
) -> None:
    before, after = updated(name, model, half_logged(0))
    assert [n for n in changed(before, after) if n.startswith("pi")]
    assert not changed(after, updated(name, model, half_logged(2))[1])


@pytest.mark.parametrize("name", ["PPO", "A2C", "MAPPO", "IMPALA", "APPO"])
def test_known_probabilities_are_used_where_the_algorithm_corrects_for_them(name: str) -> None:
    likely, unlikely = (
        updated(name, {}, all_logged(1), lambda t, p=p: {"a": np.log(p), "b": np.log(p)})[1]
        for p in (0.9, 0.5)
    )
    assert bool(changed(likely, unlikely)) == (name in ("IMPALA", "APPO"))


@pytest.mark.parametrize("name", ["IMPALA", "APPO"])
def test_the_given_log_probability_is_recorded(name: str) -> None:
    with policies_of(name) as policies:
        play(policies, lambda t: {"a": 1, "b": 1}, lambda t: {"b": -0.25 * t})
        (chunk,) = policies.feed.take()
    logp = {one.seat_id: np.array(one.outputs[LOG_PROB]) for one in chunk.trajectories}
    assert np.isposinf(logp["a"]).all()
    np.testing.assert_allclose(logp["b"], -0.25 * np.arange(NUM_STEPS))


@pytest.mark.parametrize("name", ["PPO", "A2C", "MAPPO", "IMPALA", "APPO", "DQN", "QMIX"])
def test_a_client_that_wants_log_probabilities_gets_the_recorded_ones(name: str) -> None:
    wants, others = ("e", "f"), ("g",)
    with policies_of(name) as policies:
        agents, answered = policies.store.plan.agents, []
        for one in (*wants, *others):
            policies.store.accept(StartEpisode(one, wants_log_probs=one in wants), 0.0)
        # In turn: in rows of all episodes, in rows of one, as single steps.
        for t in range(NUM_STEPS // 2):
            seen_now = {a: seen(a, t % 3) / 100 for a in "ab"}
            steps = [Step(one, t, seen_now, {"a": 1.0} if t else {}) for one in (*wants, *others)]
            items: list[AnyItem] = [rows_of(agents, steps)]
            if t % 3 == 1:
                items = [rows_of(agents, [one]) for one in steps]
            elif t % 3 == 2:
                items, steps[0].logged_actions = [*steps], {"a": 1}
            awaited = [
                policies.store.accept_rows(item, 0.0)
                if isinstance(item, StepRows)
                else policies.store.accept(item, 0.0)
                for item in items
            ]
            replies = answers_of(agents, items, act_on(policies.acting, *awaited))
            answered.append({one.episode_id: one.log_probs for one in replies})
        for one in (*wants, *others):
            policies.store.accept(EndEpisode(one, NUM_STEPS // 2), 0.0)
        policies.store.finish_frame()
        chunks = policies.store.pending or policies.feed.take()
        played = [one for chunk in chunks for one in chunk.trajectories]
    is_known = find(name).gives_log_probs
    assert is_known == (name not in ("DQN", "QMIX"))
    assert {one.episode_id for one in played} == {*wants, *others}
    for one in played:  # pieces of episodes
        got = [step[one.episode_id] for step in answered[one.t : one.t + len(one)]]
        if not is_known or one.episode_id in others:
            assert got == [{}] * len(one)
            continue
        assert [known.get(one.seat_id, np.inf) for known in got] == list(one.outputs[LOG_PROB])
        is_logged = [
            (one.episode_id, one.seat_id) == ("e", "a") and t % 3 == 2
            for t in range(one.t, one.t + len(one))
        ]
        assert [one.seat_id not in known for known in got] == is_logged


@pytest.mark.parametrize("name", ["DQN", "SAC", "QMIX", "VDN", "QPLEX", "IQL"])
def test_a_replay_learns_from_logged_actions_as_from_its_own(name: str) -> None:
    with policies_of(name) as policies:
        play(policies, lambda t: {"a": t % 3, "b": 2}, lambda t: {"a": -1.0})
        chunks = policies.store.pending or policies.feed.take()
        played = [one for chunk in chunks for one in chunk.trajectories]
    recorded = {one.seat_id: np.array(one.actions) for one in played}
    expected = np.stack([np.arange(NUM_STEPS) % 3, np.full(NUM_STEPS, 2)], axis=1)
    if "team" in recorded:
        np.testing.assert_array_equal(recorded["team"], expected)
    else:
        np.testing.assert_array_equal(recorded["a"], expected[:, 0])
        np.testing.assert_array_equal(recorded["b"], expected[:, 1])
    assert not any(one.outputs for one in played)


# --- what is refused --------------------------------------------------------------------------


def test_a_density_is_recorded_in_the_policys_scale() -> None:
    plan = make_plan("a").agents["a"]
    box = seat_of(replace(plan, action_space=Box((2,), "float32", 2.0, 10.0)))
    # Uniform on an 8 by 8 square has the density 1/64, or 1/4 on the policy's 2 by 2.
    action = {"a": np.full(2, 3.0, np.float32)}
    assert read_logged(box, action, a=-np.log(64.0)).log_probs == pytest.approx(-np.log(4.0))
    unbounded = seat_of(replace(plan, action_space=Box((2,))))
    assert read_logged(unbounded, action, a=1.5).log_probs == [[1.5]]
    discrete = seat_of(replace(plan, action_space=Discrete(3)))
    assert read_logged(discrete, {"a": 1}).log_probs is None


FROM_5, INTEGERS = Discrete(3, start=5), Box((2,), "uint64", 1, 3)
TUPLE = TupleSpace((Discrete(2, start=4),))


@pytest.mark.parametrize(
    ("name", "space"),
    [("MASAC", FROM_5), *((n, s) for n in ("PPO", "DQN") for s in (FROM_5, INTEGERS, TUPLE))],
)
def test_agents_without_logged_actions_may_act_in_spaces_without_0(name: str, space: Space) -> None:
    plan = make_plan("ab", {"team": ("a", "b")} if name == "MASAC" else None, acts=space)
    for seat in find(name).seating.make_seats(plan).values():
        logged = read_logged(seat, {})
        assert not logged.is_given.any()
