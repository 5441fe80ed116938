"""How episodes and agents end: by themselves, cut short, aborted, or said twice."""

from __future__ import annotations

import pytest
from tests.servers.scripted_store import ScriptedStore, open_store, seen

from muxrl.protocol.errors import EpisodeGone
from muxrl.protocol.messages import AbortEpisode, Step
from muxrl.servers.episodes.blocks import AwaitedStep

FINALS = {"a": seen("a", 1), "b": seen("b", 1)}
TERMINATED, TRUNCATED = (True, False), (False, True)


@pytest.fixture
def store() -> ScriptedStore:
    return open_store()


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
    pending = store.store.accept(Step("e", 1, FINALS, {"a": 1.0}), 0.0)
    assert isinstance(pending, AwaitedStep)
    store.abort()
    assert store.act(pending).actions == {"a": 1, "b": 1}
    assert store.recorded("a") == ([0.0, 1.0], [0], [1.0])
    counts = store.store.counts
    assert (counts.num_aborted, counts.num_episodes, counts.num_env_steps) == (1, 0, 1)
