"""Which episodes are open, for how long, and which of their steps reach a learner."""

from __future__ import annotations

from typing import Any

import pytest
from tests.servers.episodes.test_rows import EPISODES, played, step_of
from tests.servers.scripted_store import ScriptedStore, make_plan, open_store, seen

from muxrl.protocol.errors import EpisodeGone, NotServing, TooManyEpisodes
from muxrl.protocol.messages import Aborted, AbortEpisode, EndEpisode, StartEpisode, Step
from muxrl.servers.episodes.batches import BatchRule
from muxrl.servers.episodes.store import BROKEN


@pytest.fixture
def store() -> ScriptedStore:
    return open_store()


# --- ids and limits -------------------------------------------------------------------------


def test_a_server_that_stops_starts_nothing(store: ScriptedStore) -> None:
    store.store.is_accepting = False
    store.refused(StartEpisode("f"), NotServing)
    store.step(0)


def test_a_start_beyond_max_episodes_is_refused() -> None:
    store = ScriptedStore(make_plan(max_episodes=2))
    store.start("e")
    store.start("f")
    error = store.refused(StartEpisode("g"), TooManyEpisodes)
    assert "2 open episodes" in error.message
    store.start("e")  # a repeat starts no new episode
    store.end(0, "e")
    store.start("g")


# --- time -----------------------------------------------------------------------------------


def test_an_idle_episode_is_closed_as_truncated() -> None:
    store = ScriptedStore(make_plan(episode_timeout_s=10.0, tombstone_s=30.0))
    store.start("e")
    store.start("f")
    store.step(0)
    store.step(1, rewards={"a": 1.0})
    store.now = 8.0
    store.step(0, episode_id="f")
    assert store.store.expire(9.0) == []
    assert store.store.expire(11.0) == ["e"]
    assert store.flags()["a"] == (False, True)
    counts = store.store.counts
    assert (counts.num_expired, counts.num_aborted, store.store.num_open) == (1, 1, 1)
    error = store.refused(Step("e", 2, {}), EpisodeGone)
    assert "idle for more than 10 s" in error.message
    assert store.store.expire(18.5) == ["f"]


def test_training_episodes_that_their_run_pauses_are_not_idle() -> None:
    store = ScriptedStore(make_plan(episode_timeout_s=10.0))
    store.start("e")
    store.step(0)
    store.start("f", mode="eval")
    store.step(0, episode_id="f")
    store.store.is_paused = True
    assert store.store.expire(1_000.0) == ["f"]
    store.store.is_paused = False
    assert store.store.expire(1_009.0) == []
    assert store.store.expire(1_011.0) == ["e"]


def test_an_episode_that_waits_for_actions_is_not_idle() -> None:
    store = ScriptedStore(make_plan(episode_timeout_s=10.0))
    store.start()
    pending: Any = store.store.accept(Step("e", 0, {"a": seen("a", 0)}), 0.0)
    assert store.store.expire(1e6) == []
    store.act(pending)
    assert store.store.expire(1e6) == ["e"]


def test_a_step_that_could_not_be_answered_does_not_keep_its_episode_for_ever() -> None:
    store = ScriptedStore(make_plan(episode_timeout_s=10.0))
    store.start()
    pending: Any = store.store.accept(Step("e", 0, {"a": seen("a", 0)}), 0.0)
    pending.blocks[0].has_failed = True  # the batcher sets this if the module raises
    assert store.store.expire(9.0) == []
    assert store.store.expire(11.0) == ["e"]


def test_the_episodes_of_a_lost_simulation_are_closed_as_truncated_and_no_others() -> None:
    store = ScriptedStore(make_plan())
    for episode_id in ("simulation-1-ab-e", "simulation-10-cd-e", "simulation-1-ab-f"):
        store.start(episode_id)
        store.step(0, episode_id=episode_id)
    store.step(1, episode_id="simulation-1-ab-e", rewards={"a": 1.0})
    waiting: Any = store.store.accept(Step("simulation-1-ab-f", 1, {"a": seen("a", 1)}), 0.0)
    assert store.store.abort_all("simulation-1-ab-", 0.0) == 2
    pieces = store.trajectories("a")
    assert [(one.is_terminated, one.is_truncated) for one in pieces] == [(False, True)] * 2
    counts = store.store.counts
    assert (counts.num_aborted, counts.num_expired, store.store.num_open) == (2, 0, 1)
    store.act(waiting)  # its forward pass may come after the abort, and has no consequences
    store.refused(Step("simulation-1-ab-f", 2, {}), EpisodeGone)
    store.step(1, episode_id="simulation-10-cd-e")
    assert store.store.abort_all("simulation-1-ab-", 0.0) == 0


@pytest.mark.parametrize("how", ["cut", "expire", "abort_all", "long"])
def test_an_episode_that_cannot_be_processed_harms_no_other(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The broken episode is closed and named; otherwise it would make every step and every expiry
    fail."""
    if how == "long":
        monkeypatch.setattr("muxrl.servers.episodes.steps._MOST_BLOCKS", 3)
    player = played(3)
    store = player.store.store
    record = store._table.records[store._table.slot_of["e1"]]
    monkeypatch.setattr(record, "take", lambda *_: {}["its record"])
    if how == "expire":
        assert store.expire(1e6) == list(EPISODES)
    elif how == "abort_all":
        assert store.abort_all("e", 0.0) == 3
    else:
        if how == "cut":
            store._batches._rule = BatchRule(store._batches._num_new_steps + 1)
            player.tell([step_of(player, "e0", 3)])
        else:
            player.tell([step_of(player, e, 3) for e in EPISODES])
        assert store.num_open == 2
        player.tell([step_of(player, "e2", 3)])
        for episode_id in ("e0", "e2"):
            player.tell([EndEpisode(episode_id, 4)])
        store.finish_frame()
    assert store.num_open == 0
    assert {chunk.episode_id for chunk in player.store.chunks} == {"e0", "e2"}
    (warning,) = [one for one in store.warnings.found if one.what == BROKEN]
    assert warning.num == 1
    assert "episode e1" in warning.text
    assert "its record" in warning.text
    assert [bool(r.exc_info) for r in caplog.records if "episode e1" in r.getMessage()] == [True]
    assert isinstance(store.accept(EndEpisode("e1", 3), 0.0), Aborted)
    assert store.counts.num_aborted == {"expire": 3, "abort_all": 3}.get(how, 1)


def test_an_end_is_remembered_for_its_time() -> None:
    store = ScriptedStore(make_plan(tombstone_s=30.0))
    for i, episode_id in enumerate("efg"):
        store.now = 10.0 * i
        store.start(episode_id)
        store.end(0, episode_id)
    store.store.expire(35.0)  # episode e is forgotten
    store.refused(EndEpisode("e", 0), EpisodeGone)
    store.end(0, "f")
    store.end(0, "g")
    store.start("e")


@pytest.mark.parametrize(
    ("limit", "most"),
    [("MOST_OVER", 2), ("_MOST_RETURNS", 4)],  # each episode has returns of two agents
)
def test_the_oldest_of_too_many_ends_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(f"muxrl.servers.episodes.store.{limit}", most)
    store = ScriptedStore(make_plan(tombstone_s=30.0, max_episodes=2))
    for episode_id in "efg":
        store.start(episode_id)
        store.end(0, episode_id)
    store.refused(EndEpisode("e", 0), EpisodeGone)
    store.end(0, "f")
    store.end(0, "g")


# --- evaluation -----------------------------------------------------------------------------


FINALS = {"a": seen("a", 1), "b": seen("b", 1)}


# --- ends -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_truncated", [False, True])
def test_zero_steps_are_an_episode(store: ScriptedStore, is_truncated: bool) -> None:
    ended = store.end(0, is_truncated=is_truncated, rewards={"a": 1.0})
    assert (ended.num_steps, ended.returns) == (0, {"a": 1.0})
    assert store.chunks == []
    assert store.store.counts.num_episodes == 1


# --- ends that are said again, or aborted ---------------------------------------------------


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
    pending: Any = store.store.accept(Step("e", 1, FINALS, {"a": 1.0}), 0.0)
    store.abort()
    assert store.act(pending).actions == {"a": 1, "b": 1}
    assert store.recorded("a") == ([0.0, 1.0], [0], [1.0])
    counts = store.store.counts
    assert (counts.num_aborted, counts.num_episodes, counts.num_env_steps) == (1, 0, 1)
