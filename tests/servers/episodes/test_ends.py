"""How episodes and agents end: by themselves, cut short, aborted, or said twice."""

from __future__ import annotations

from typing import Any

import pytest
from tests.servers.scripted_store import ScriptedStore, open_store, seen

from muxrl.protocol.errors import EpisodeGone
from muxrl.protocol.messages import Aborted, AbortEpisode, Step
from muxrl.servers.episodes.blocks import AwaitedStep

FINALS = {"a": seen("a", 1), "b": seen("b", 1)}
TERMINATED, TRUNCATED = (True, False), (False, True)


@pytest.fixture
def store() -> ScriptedStore:
    return open_store()


# --- ends -----------------------------------------------------------------------------------


def test_terminated(store: ScriptedStore) -> None:
    store.step(0)
    store.end(1)
    assert store.flags() == {"": TERMINATED, "a": TERMINATED, "b": TERMINATED}


@pytest.mark.parametrize("how", ["is_truncated", "truncations"])
def test_all_agents_truncated_is_no_termination(store: ScriptedStore, how: str) -> None:
    store.step(0)
    told = (
        {"is_truncated": True} if how == "is_truncated" else {"truncations": {"a": True, "b": True}}
    )
    store.end(1, final_observations=FINALS, **told)
    assert store.flags() == {"": TRUNCATED, "a": TRUNCATED, "b": TRUNCATED}
    assert store.recorded("a")[0] == [0.0, 1.0]


def test_one_terminates_and_one_is_truncated_in_the_same_step(store: ScriptedStore) -> None:
    store.step(0)
    store.end(1, truncations={"a": True}, terminations={"b": True}, final_observations=FINALS)
    assert store.flags() == {"": TRUNCATED, "a": TRUNCATED, "b": TERMINATED}


@pytest.mark.parametrize("finals", [FINALS, {}])
def test_who_terminates_at_the_time_limit_is_terminated(
    store: ScriptedStore, finals: dict[str, Any]
) -> None:
    store.step(0)
    both = {"a": True}
    store.step(1, "b", truncations=both, terminations=both, final_observations=finals)
    store.end(2, truncations={"b": True}, terminations={"b": True}, is_truncated=True)
    assert store.flags() == {"": TERMINATED, "a": TERMINATED, "b": TERMINATED}


def test_one_dies_early(store: ScriptedStore) -> None:
    store.step(0)
    store.step(1, "a", terminations={"b": True}, rewards={"b": -1.0})
    store.step(2, "a")
    store.end(3, is_truncated=True, final_observations={"a": seen("a", 3)})
    assert store.flags() == {"": TRUNCATED, "a": TRUNCATED, "b": TERMINATED}
    assert store.recorded("a")[0] == [0.0, 1.0, 2.0, 3.0]
    assert store.recorded("b")[1:] == ([0], [-1.0])


def test_one_is_truncated_early(store: ScriptedStore) -> None:
    store.step(0)
    store.step(1, "a", truncations={"b": True}, final_observations={"b": seen("b", 1)})
    store.step(2, "a")
    store.end(3)
    assert store.flags() == {"": TERMINATED, "a": TERMINATED, "b": TRUNCATED}
    assert store.recorded("b")[0] == [0.0, 1.0]


def test_the_only_agent_so_far_ends_and_another_appears(store: ScriptedStore) -> None:
    store.step(0, "a")
    store.step(1, "", terminations={"a": True})
    store.step(2, "b", rewards={"b": 9.0})
    store.step(3, "b", rewards={"b": 1.0})
    assert store.end(4, rewards={"b": 1.0}).returns == {"a": 0.0, "b": 11.0}
    assert store.flags() == {"": TERMINATED, "a": TERMINATED, "b": TERMINATED}
    assert store.recorded("b")[1:] == ([2, 0], [1.0, 1.0])


def test_truncated_while_it_did_not_act_needs_no_final_observation(store: ScriptedStore) -> None:
    store.step(0)
    store.step(1, "a", rewards={"b": 1.0})
    store.step(2, "a", truncations={"b": True}, rewards={"b": 1.0})
    store.end(3)
    assert store.flags()["b"] == TRUNCATED
    assert store.recorded("b")[1:] == ([0], [2.0])


def test_all_agents_end_in_a_step_and_then_the_episode(store: ScriptedStore) -> None:
    store.step(0)
    store.step(1, "", terminations={"a": True, "b": True}, rewards={"a": 1.0})
    assert store.end(2, rewards={"a": 2.0}).returns == {"a": 3.0, "b": 0.0}
    assert store.flags() == {"": TERMINATED, "a": TERMINATED, "b": TERMINATED}
    assert store.recorded("a")[1:] == ([0], [1.0])


def test_an_agent_that_never_appears(store: ScriptedStore) -> None:
    store.step(0, "a")
    store.end(1)
    assert "b" not in store.flags()


@pytest.mark.parametrize("is_truncated", [False, True])
def test_zero_steps_are_an_episode(store: ScriptedStore, is_truncated: bool) -> None:
    ended = store.end(0, is_truncated=is_truncated, rewards={"a": 1.0})
    assert (ended.num_steps, ended.returns) == (0, {"a": 1.0})
    assert store.chunks == []
    assert store.store.counts.num_episodes == 1


def test_steps_in_which_nobody_here_acts(store: ScriptedStore) -> None:
    store.step(0)
    assert store.step(1, "", rewards={"a": 1.0}).actions == {}
    store.step(2, rewards={"a": 1.0})
    store.end(3)
    assert store.recorded("a")[1:] == ([0, 2], [2.0, 0.0])


# --- ends that are said again, or aborted ---------------------------------------------------


def test_an_end_said_again_is_answered_again(store: ScriptedStore) -> None:
    store.step(0)
    ended = store.end(1)
    assert store.end(1) is ended
    assert store.abort() is ended
    assert store.refused(Step("e", 1, {}), EpisodeGone)
    assert store.store.counts.num_episodes == 1


def test_abort_keeps_what_there_is_as_truncated(store: ScriptedStore) -> None:
    for t in range(3):
        store.step(t, rewards={"a": 1.0} if t else {})
    assert isinstance(store.abort(), Aborted)
    assert isinstance(store.abort(), Aborted)
    assert store.flags() == {"": TRUNCATED, "a": TRUNCATED, "b": TRUNCATED}
    assert store.recorded("a") == ([0.0, 1.0, 2.0], [0, 1], [1.0, 1.0])
    counts = store.store.counts
    assert (counts.num_aborted, counts.num_episodes, counts.num_env_steps) == (1, 0, 2)


@pytest.mark.parametrize(
    ("reason", "story"),
    [
        ("a\nwheel\N{BELL}", "it was aborted: a\nwheel\N{BELL}"),
        ("x" * 10_000, "it was aborted: " + "x" * 200),
        ("", "it was aborted"),
        (None, "it has ended"),
    ],
)
def test_why_an_episode_is_over_is_told_in_later_refusals_and_in_the_log(
    store: ScriptedStore, caplog: pytest.LogCaptureFixture, reason: str | None, story: str
) -> None:
    caplog.set_level("INFO")
    store.step(0)
    if reason is None:
        store.end(1)
    else:
        store.start("f")
        for episode_id in "ef":
            store.store.accept(AbortEpisode(episode_id, reason), store.now)
    refusal = store.refused(Step("e", 1, {}), EpisodeGone)
    assert refusal.message == f"episode e is over on server 'scripted': {story}"
    told = [r.getMessage() for r in caplog.records if "is over" in r.getMessage()]
    assert told == ([] if reason is None else [f"episode 'e' is over: {story!r}"]), "f is too soon"


def test_abort_while_actions_are_awaited(store: ScriptedStore) -> None:
    store.step(0)
    pending = store.store.accept(Step("e", 1, FINALS, {"a": 1.0}), 0.0)
    assert isinstance(pending, AwaitedStep)
    store.abort()
    assert store.act(pending).actions == {"a": 1, "b": 1}
    assert store.recorded("a") == ([0.0, 1.0], [0], [1.0])


@pytest.mark.parametrize("num_steps", [0, 1])
def test_abort_before_anything_is_recorded(store: ScriptedStore, num_steps: int) -> None:
    for t in range(num_steps):
        store.step(t)
    store.abort()
    assert store.chunks == []
