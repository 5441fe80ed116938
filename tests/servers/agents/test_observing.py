"""Observations are normalised by statistics of the observations in training, and of no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.servers.scripted_store import ScriptedStore, count, make_plan, seen

from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.messages import Step
from muxrl.protocol.spaces import Box, DictSpace, Discrete, Space
from muxrl.protocol.values import conform
from muxrl.servers.agents.observing import CLIP, Observing
from muxrl.servers.agents.seating import MASKED_AGENTS, Seating
from muxrl.servers.algorithms.settings.actor_critic import CENTRAL
from muxrl.servers.alone import Alone
from muxrl.servers.config import AgentPlan, ServerPlan


def normalizing(*args: Any, **fields: Any) -> ServerPlan:
    return make_plan(*args, normalize_observations=True, **fields)


def observing_of(space: Space, **kwargs: Any) -> Observing:
    return Observing(normalizing({"a": space}, **kwargs))


def count_of(store: ScriptedStore) -> list[int]:
    kinds = store.observing.get_state()["policies"].values()
    return [statistics["count"] for by_kind in kinds for statistics in by_kind.values()]


@pytest.mark.parametrize(("shift", "size"), [(0.0, 1.0), (1e3, 1e-3), (-1e6, 1e2)])
def test_normalised_numbers_have_mean_0_and_deviation_1(shift: float, size: float) -> None:
    space = Box((3,), "float64")
    observing = observing_of(space)
    read = observing.reader("a", space)
    data = np.random.default_rng(0).normal(shift, size, (500, 3))
    for row in data:
        count(observing, {"a": row})
    expected = (data - data.mean(axis=0)) / data.std(axis=0)
    found = np.array([read(row) for row in data])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-4)
    outlier = np.array([shift + 100 * size, shift - 100 * size, shift])
    assert read(outlier)[:2].tolist() == [CLIP, -CLIP]


def test_a_number_that_never_changes_is_read_as_0_and_a_change_of_it_in_full() -> None:
    observing = observing_of(Box((1,)))
    read = observing.reader("a", Box((1,)))
    for _ in range(50):
        count(observing, {"a": np.array([7.0], np.float32)})
    assert read(np.array([7.0])).tolist() == [0.0]
    assert read(np.array([9.0])).tolist() == [2.0]


def test_before_there_are_two_observations_they_are_only_clipped() -> None:
    read = observing_of(Box((2,))).reader("a", Box((2,)))
    assert read(np.array([3.0, 300.0])).tolist() == [3.0, CLIP]


def test_one_hot_parts_truth_values_and_masks_stay_as_they_are() -> None:
    space = DictSpace(
        {
            "action_mask": Box((2,), "int8", 0, 1),
            "b": Box((2,), "bool"),
            "n": Discrete(2),
            "x": Box((1,)),
        }
    )
    observing = observing_of(space)
    read = observing.reader("a", space)
    rng = np.random.default_rng(0)
    for x in rng.normal(5.0, 2.0, 100):
        value = {"action_mask": [1, 0], "b": [True, False], "n": 1, "x": np.array([x])}
        count(observing, {"a": conform(space, value)})
    value = {"action_mask": [1, 0], "b": [True, True], "n": 0, "x": np.array([5.0])}
    values = read(conform(space, value))
    assert values[:6].tolist() == [1.0, 0.0, 1.0, 1.0, 1.0, 0.0]
    assert abs(values[6]) < 0.5


def test_one_hot_observations_have_no_statistics() -> None:
    observing = observing_of(Discrete(3))
    assert observing.reader("a", Discrete(3))(1).tolist() == [0.0, 1.0, 0.0]
    count(observing, {"a": 1})
    assert observing.get_state()["policies"] == {"default": {}}


def test_images_are_scaled_and_then_normalised() -> None:
    space = Box((2, 2, 1), "uint8", 0, 255)
    observing = observing_of(space, scale_observations="images")
    read = observing.reader("a", space)
    images = np.random.default_rng(0).integers(0, 256, (200, 2, 2, 1), np.uint8)
    for image in images:
        count(observing, {"a": image})
    (state,) = observing.get_state()["policies"]["default"].values()
    np.testing.assert_allclose(state["mean"], (images / 255).mean(axis=0), rtol=1e-6)
    expected = (images[0] - images.mean(axis=0)) / images.std(axis=0)
    np.testing.assert_allclose(read(images[0]), expected, atol=1e-5)


# --- in a store -----------------------------------------------------------------------------


def test_training_steps_are_counted_once_and_evaluation_never() -> None:
    store = ScriptedStore(normalizing("ab"), seating=Seating())
    store.start("e")
    store.start("v", mode="evaluate")
    for t in range(3):
        store.step(t, episode_id="e", rewards={})
        store.step(t, episode_id="e", rewards={})  # a repeat of the step
        store.step(t, episode_id="v", rewards={})
    (state,) = store.observing.get_state()["policies"]["default"].values()
    data = np.array([seen(agent, t) for agent in "ab" for t in range(3)], np.float64)
    assert state["count"] == 6
    np.testing.assert_allclose(state["mean"], data.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(state["squares"] / 6, data.var(axis=0), rtol=1e-12)
    store.observing.freeze()
    store.step(3, episode_id="e", rewards={})
    assert count_of(store) == [6]


def test_a_refused_step_is_not_counted() -> None:
    masked = DictSpace({"action_mask": Box((3,), "int8", 0, 1), "seen": Box((2,))})
    plan = normalizing({"a": masked, "b": masked})
    store = ScriptedStore(plan, seating=MASKED_AGENTS)
    store.start()

    def looks(mask: int) -> dict[str, Any]:
        sees = np.zeros(2, np.float32)
        return {"action_mask": np.full(3, mask, np.int8), "seen": sees}

    store.refused(Step("e", 0, {"a": looks(1), "b": looks(0)}), ValueMismatch)
    assert count_of(store) == [0]
    store.step(0, observations={"a": looks(1), "b": looks(1)})
    assert count_of(store) == [2]


def test_all_parts_of_a_step_are_normalised_alike_and_recorded_as_acted_on() -> None:
    store = ScriptedStore(normalizing("ab"), seating=Seating())
    store.start()
    for t in range(4):
        store.step(t, rewards={})
    store.end(4, terminations=dict.fromkeys("ab", True))
    data = [[seen(agent, t) for agent in "ab"] for t in range(4)]
    for t in range(4):
        before = np.array(data[:t]).reshape(-1, 2)
        mean, deviation = (before.mean(axis=0), before.std(axis=0)) if t else (0.0, 1.0)
        deviation = np.where(deviation > 0, deviation, 1.0)
        for agent, raw in zip("ab", data[t], strict=True):
            (one,) = store.trajectories(agent)
            recorded = one.observations[t]
            expected = np.clip((raw - mean) / deviation, -CLIP, CLIP)
            np.testing.assert_allclose(recorded, expected, rtol=1e-6)


def test_padding_and_absent_members_of_a_team_stay_zeros() -> None:
    seen = {"a": Box((3,)), "b": Box((2,))}
    plan = normalizing(seen, {"team": ("a", "b")}, late_members="allow")
    store = ScriptedStore(plan)
    store.start()
    rng = np.random.default_rng(0)
    both = {"a": 5 + rng.random(3, np.float32), "b": 50 + rng.random(2, np.float32)}
    for t in range(3):
        store.step(t, observations=both, rewards={})
    alone = Alone(plan.agents, store.seats)
    team = alone.look(both).block.observations[0]
    assert team["obs"].tolist() == [[[[0.0] * 3] * 2]], "each is its own mean; and the padding"
    team = alone.look({"a": both["a"] + 1}).block.observations[0]
    assert team["obs"].tolist() == [[[[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]]]
    counts = store.observing.get_state()["policies"]["team"]
    assert {kind: s["count"] for kind, s in counts.items()} == {
        "Box(3,) float32": 3,
        "Box(2,) float32": 3,
    }


@pytest.mark.parametrize("seating", [None, CENTRAL], ids=["QMIX", "MAPPO"])
@pytest.mark.parametrize("is_observed", [False, True])
def test_a_global_state_has_statistics_of_its_own(seating: Any, is_observed: bool) -> None:
    told = DictSpace({"seen": Box((2,)), "state": Box((1,))})
    plan = normalizing(
        dict.fromkeys("ab", told if is_observed else Box((2,))),
        {"team": ("a", "b")},
        state_size=None if is_observed else 1,
    )
    store = ScriptedStore(plan, seating=seating)
    store.start()
    states = np.random.default_rng(0).normal(1e4, 1.0, 50).astype(np.float32)
    for t, number in enumerate(states):
        state = np.array([number])
        own = {agent: seen(agent, t) for agent in "ab"}
        if is_observed:
            own = {a: {"seen": s, "state": state} for a, s in own.items()}
            store.step(t, observations=own, rewards={})
        else:
            store.step(t, observations=own, rewards={}, state=state)
    look = Alone(plan.agents, store.seats).look(own, None if is_observed else state)
    read = look.block.observations[0]["state"].ravel()[0]
    known = states.astype(np.float64)
    assert read == pytest.approx((known[-1] - known.mean()) / known.std(), abs=1e-2)


def test_statistics_of_other_observations_are_refused_by_name() -> None:
    one, other = observing_of(Box((2,))), observing_of(Box((3,)))
    one.reader("a", Box((2,)))
    other.reader("a", Box((3,)))
    with pytest.raises(ValueError, match=r"no statistics of .* in Box\(3,\) float32, only in"):
        other.set_state(one.get_state())
    agents = {"x": AgentPlan("q", Box((2,)), Discrete(2))}
    third = Observing(replace(normalizing(), agents=agents))
    read = third.reader("x", Box((2,)))
    count(one, {"a": np.array([1.0, 2.0])})
    count(one, {"a": np.array([3.0, 6.0])})
    third.set_state(one.get_state(), names={"q": "default"}, has_states=False)
    assert read(np.array([3.0, 4.0])).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("more", [{}, {"y": Box((1,))}])
def test_a_mask_beside_numbers_beside_a_state_is_not_counted(more: dict[str, Space]) -> None:
    seen_alone = {"x": Box((2,)), **more}
    inner = DictSpace({**seen_alone, "action_mask": Box((3,), "int8", 0, 1)})
    told = DictSpace({"obs": inner, "state": Box((2,))})
    plan = normalizing(dict.fromkeys("ab", told), {"team": ("a", "b")})
    store = ScriptedStore(plan)
    store.start()
    for t in range(3):
        numbers = {key: np.full(box.shape, t, np.float32) for key, box in seen_alone.items()}
        value = {"obs": {**numbers, "action_mask": np.ones(3, np.int8)}, "state": np.zeros(2)}
        store.step(t, observations=dict.fromkeys("ab", value), rewards={})
    (state,) = store.observing.get_state()["policies"]["team"].values()
    assert (state["count"], set(state["mean"])) == (6, {1.0})
