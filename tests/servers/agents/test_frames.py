"""A learner gets the stacked frames that a plain loop over each agent's episode would stack."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.servers.scripted_store import ScriptedStore, each, make_plan, seen

from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.messages import Step
from muxrl.protocol.spaces import Box, DictSpace
from muxrl.servers.agents.observing import Observing
from muxrl.servers.agents.seating import MASKED_AGENTS, Seating
from muxrl.servers.algorithms.settings.actor_critic import CENTRAL
from muxrl.servers.trainers.budget import bytes_of

AGENTS = "ab"


def recorded(store: ScriptedStore, seat_id: str) -> list[Any]:
    """Returns what a seat observed, over all chunks.

    Each chunk begins with the observation that ended the one before.
    """
    found: list[Any] = []
    for one in store.trajectories(seat_id):
        found += each(one.observations)[bool(found) :]
    return found


def test_a_refused_step_leaves_no_frame_and_a_mask_is_not_stacked() -> None:
    masked = DictSpace({"action_mask": Box((3,), "int8", 0, 1), "seen": Box((2,))})
    plan = make_plan({"a": masked, "b": masked}, frame_stack=2)
    store = ScriptedStore(plan, seating=MASKED_AGENTS)
    store.start()

    def looks(agent: str, t: int, mask: int) -> dict[str, Any]:
        return {"action_mask": np.full(3, mask, np.int8), "seen": seen(agent, t)}

    for t in range(2):
        refused = {"a": looks("a", 90, 1), "b": looks("b", 90, 0)}
        store.refused(Step("e", t, refused), ValueMismatch)
        store.step(t, observations={a: looks(a, t, 1) for a in AGENTS})
    store.end(2, terminations=dict.fromkeys(AGENTS, True))
    for agent in AGENTS:
        first, second, _ = recorded(store, agent)
        assert first["obs"].tolist() == [*seen(agent, 0), *seen(agent, 0)]
        assert second["obs"].tolist() == [*seen(agent, 0), *seen(agent, 1)]
        assert second["action_mask"].tolist() == [1, 1, 1]


def test_evaluation_stacks_and_a_repeated_step_is_one_frame() -> None:
    store = ScriptedStore(make_plan(AGENTS, frame_stack=2), seating=Seating())
    store.start(mode="eval")
    store.step(0)
    store.step(0)
    item = Step("e", 1, {a: seen(a, 1) for a in AGENTS})
    pending: Any = store.store.accept(item, store.now)
    assert pending.blocks[0].observations[0][0, :, 1::2].tolist() == [[0, 1], [0, 1]]


def test_the_state_that_a_simulation_sends_is_not_stacked() -> None:
    plan = make_plan(AGENTS, {"team": ("a", "b")}, state_size=1, frame_stack=3)
    for seating in (None, CENTRAL):
        store = ScriptedStore(plan, seating=seating)
        store.start()
        for t in range(2):
            store.step(t, state=np.array([t], np.float32), rewards={})
        store.end(2, terminations=dict.fromkeys(AGENTS, True))
        seat = recorded(store, "team" if seating is None else "a")
        assert [o["state"].tolist() for o in seat[:2]] == [[0.0], [1.0]]
        assert seat[1]["obs"].shape[-1] == 6


def test_images_are_stacked_by_channel_and_scaled_once() -> None:
    space = Box((2, 2, 3), "uint8", 0, 255)
    plan = make_plan({"a": space}, frame_stack=2, scale_observations="images")
    store = ScriptedStore(plan, seating=Seating())
    store.start()
    images = np.random.default_rng(0).integers(0, 256, (2, 2, 2, 3), np.uint8)
    for t, image in enumerate(images):
        store.step(t, observations={"a": image}, rewards={})
    store.end(2, terminations={"a": True})
    seat = store.seats["a"]
    seen_now = recorded(store, "a")[1]
    assert seat.observation_space == Box((2, 2, 6), "float32", 0.0, 1.0)
    assert 0.0 <= seen_now.min() <= seen_now.max() <= 1.0
    np.testing.assert_array_equal(seen_now, np.concatenate(images, -1).astype(np.float32) / 255)


def test_statistics_are_of_single_observations_and_a_frame_keeps_its_units() -> None:
    plan = make_plan(AGENTS, frame_stack=2, normalize_observations=True)
    store = ScriptedStore(plan, seating=Seating())
    store.start()
    for t in range(5):
        store.step(t, rewards={})
    store.end(5, terminations=dict.fromkeys(AGENTS, True))
    (statistics,) = store.observing.get_state()["policies"]["default"].values()
    assert (statistics["count"], statistics["mean"].shape) == (10, (2,))
    stacks = recorded(store, "a")
    for before, after in pairwise(stacks[:5]):
        np.testing.assert_array_equal(before[2:], after[:2])


@pytest.mark.parametrize("k", [1, 4])
def test_a_replay_takes_so_many_times_the_memory_for_observations(k: int) -> None:
    image = Box((84, 84, 1), "uint8", 0, 255)
    space = Observing(make_plan({"a": image}, frame_stack=k)).space(image)
    assert bytes_of(space) == k * 84 * 84 * 4
