"""Agents that come back after their end in the same episode: each life is one of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.servers.scripted_store import ScriptedStore, make_plan, seen

from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.messages import Step
from muxrl.servers.agents.seating import Seating
from muxrl.servers.algorithms.settings.actor_critic import CENTRAL
from muxrl.servers.episodes.columns import pack_chunks, unpack_chunks

TERMINATED, TRUNCATED, GOES_ON = (True, False), (False, True), (False, False)


def open_store(*, agents_return: bool = True, **kwargs: Any) -> ScriptedStore:
    plan = replace(make_plan(), agents_return=agents_return)
    store = ScriptedStore(plan, seating=Seating(), **kwargs)
    store.start()
    return store


def test_an_episode_goes_on_though_all_had_ended_and_over_cuts() -> None:
    store = open_store(batch_env_steps=2)
    store.step(0)
    for t in range(1, 7):
        store.step(t, terminations={"a": True, "b": True}, rewards={"a": 1.0, "b": 1.0})
        store.store.finish_frame()
    assert store.end(7, is_truncated=False).returns == {"a": 6.0, "b": 6.0}
    assert [c.is_done for c in store.chunks] == [False] * (len(store.chunks) - 1) + [True]
    parts = [one for chunk in store.chunks for one in chunk.trajectories]
    assert len({one.id for one in parts}) == len(parts) == 14  # a replay joins none of them
    assert all(one.is_terminated for one in parts)
    assert {one.agent_id for one in parts} == {"a", "b"}


def test_a_saved_chunk_keeps_the_lives_apart() -> None:
    store = open_store()
    store.step(0)
    store.step(1, terminations={"b": True})
    store.end(2)
    (chunk,) = unpack_chunks(pack_chunks(store.chunks))
    assert [one.key for one in chunk.trajectories] == ["a", "b", "b~2"]


def test_refused_unless_the_config_says_so() -> None:
    store = open_store(agents_return=False)
    store.step(0)
    observations = {a: seen(a, 1) for a in "ab"}
    refusal = store.refused(Step("e", 1, observations, terminations={"b": True}), ValueMismatch)
    assert "simulation.respawn" in refusal.message


def test_a_refused_return_changes_nothing() -> None:
    store = open_store()
    store.step(0)
    store.refused(  # it acted now, and what its value is bootstrapped from is missing
        Step("e", 1, {a: seen(a, 1) for a in "ab"}, truncations={"b": True}), ValueMismatch
    )
    store.step(1, terminations={"b": True})
    store.end(2)
    assert store.recorded("b") == ([0.0, 0.0], [0], [0.0])


def test_measured_too() -> None:
    store = ScriptedStore(replace(make_plan(), agents_return=True), seating=Seating())
    store.start(mode="eval")
    store.step(0)
    store.step(1, terminations={"b": True}, rewards={"b": 5.0})
    assert store.step(2, rewards={"b": 7.0}).actions.keys() == {"a", "b"}
    assert store.end(3).returns == {"a": 0.0, "b": 12.0}


def test_a_life_begins_without_the_frames_of_the_one_before() -> None:
    plan = replace(make_plan(), agents_return=True, frame_stack=2, late_members="allow")
    store = ScriptedStore(plan, seating=Seating())
    store.start()
    for t in range(2):
        store.step(t)
    finals = {"b": seen("b", 90)}
    store.step(2, truncations={"b": True}, final_observations=finals)
    store.step(3)
    store.end(4, is_truncated=True, final_observations={a: seen(a, 99) for a in "ab"})
    frames = {key: stacks_of(store, key) for key in ("b", "b~2")}
    assert frames == {"b": [(0, 0), (0, 1), (1, 90)], "b~2": [(2, 2), (2, 3), (3, 99)]}


def stacks_of(store: ScriptedStore, key: str) -> list[tuple[float, ...]]:
    """Returns at which t each frame was seen, of every stack."""
    (one,) = store.trajectories(key)
    return [tuple(stack[1::2]) for stack in one.observations]


def test_without_a_group_each_life_is_one_of_its_own_to_a_central_critic_too() -> None:
    plan = replace(make_plan(), agents_return=True)
    store = ScriptedStore(plan, seating=CENTRAL)
    store.start()
    store.step(0)
    store.step(1, terminations={"b": True})
    store.end(2, is_truncated=True, final_observations={a: seen(a, 99) for a in "ab"})
    assert store.flags() == {"": TRUNCATED, "a": TRUNCATED, "b": TERMINATED, "b~2": TRUNCATED}
