"""Agents that come back after their end in the same episode: each life is one of its own."""

from __future__ import annotations

from typing import Any

from tests.servers.scripted_store import ScriptedStore, make_plan, seen

from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.messages import Step
from muxrl.servers.agents.seating import Seating
from muxrl.servers.algorithms.settings.actor_critic import CENTRAL
from muxrl.servers.episodes.columns import pack_chunks, unpack_chunks

TERMINATED, TRUNCATED, GOES_ON = (True, False), (False, True), (False, False)


def open_store(*, agents_return: bool = True, **kwargs: Any) -> ScriptedStore:
    store = ScriptedStore(make_plan(agents_return=agents_return), seating=Seating(), **kwargs)
    store.start()
    return store


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


def test_measured_too() -> None:
    store = ScriptedStore(make_plan(agents_return=True), seating=Seating())
    store.start(mode="eval")
    store.step(0)
    store.step(1, terminations={"b": True}, rewards={"b": 5.0})
    assert store.step(2, rewards={"b": 7.0}).actions.keys() == {"a", "b"}
    assert store.end(3).returns == {"a": 0.0, "b": 12.0}


def test_without_a_group_each_life_is_one_of_its_own_to_a_central_critic_too() -> None:
    store = ScriptedStore(make_plan(agents_return=True), seating=CENTRAL)
    store.start()
    store.step(0)
    store.step(1, terminations={"b": True})
    store.end(2, is_truncated=True, final_observations={a: seen(a, 99) for a in "ab"})
    assert store.flags() == {"": TRUNCATED, "a": TRUNCATED, "b": TERMINATED, "b~2": TRUNCATED}
