"""What a server makes of an episode's items: recorded once, whole or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scripted_store import ScriptedStore, make_plan, seen

from protocol.errors import (
    EpisodeGone,
    NotServing,
    OutOfOrder,
    ProtocolError,
    TooManyEpisodes,
    ValueMismatch,
)
from protocol.messages import Aborted, AbortEpisode, EndEpisode, Started, StartEpisode, Step
from protocol.spaces import Box
from servers.episodes import PendingStep


@pytest.fixture
def store() -> ScriptedStore:
    store = ScriptedStore(make_plan())
    store.start()
    return store


def refused(store: ScriptedStore, item: Any, kind: type[ProtocolError]) -> ProtocolError:
    with pytest.raises(kind) as refusal:
        store.store.accept(item, store.now)
    return refusal.value


# --- one transition a step ------------------------------------------------------------------


def test_one_transition_a_step(store: ScriptedStore) -> None:
    for t in range(4):
        reply = store.step(t, rewards={"a": float(t), "b": 1.0} if t else {})
        assert (reply.t, reply.actions) == (t, {"a": t % 3, "b": t % 3})
    ended = store.end(4, rewards={"a": 4.0})
    assert (ended.num_steps, ended.returns) == (4, {"a": 10.0, "b": 3.0})
    assert store.recorded("a")[1:] == ([0, 1, 2, 0], [1.0, 2.0, 3.0, 4.0])
    assert store.recorded("b")[1:] == ([0, 1, 2, 0], [1.0, 1.0, 1.0, 0.0])
    assert store.store.counts.num_env_steps == 4
    assert store.store.counts.num_agent_steps == 8
    assert store.store.counts.num_episodes == 1
    assert store.store.counts.episode_return_mean == 13.0


def test_the_same_step_twice_is_recorded_once_and_answered_alike(store: ScriptedStore) -> None:
    for t in range(3):
        first = store.step(t, rewards={"a": 1.0} if t else {})
        store.weights_seq_no += 1
        assert store.step(t, rewards={"a": 1.0} if t else {}) is first
    assert store.end(3).returns == {"a": 2.0}
    assert store.recorded("a")[1:] == ([0, 1, 2], [1.0, 1.0, 0.0])
    assert store.store.counts.num_env_steps == 3
    assert store.store.counts.num_agent_steps == 6


def test_a_repeat_of_what_is_still_pending_waits_for_the_same_answer(store: ScriptedStore) -> None:
    item = Step("e", 0, {"a": seen("a", 0)})
    pending = store.store.accept(item, 0.0)
    assert store.store.accept(item, 0.0) is pending
    assert isinstance(pending, PendingStep)
    reply = store.act(pending)
    assert store.store.accept(item, 0.0) is reply


@pytest.mark.parametrize("t", [-1, 1, 5])
def test_another_step_than_the_one_awaited(store: ScriptedStore, t: int) -> None:
    error = refused(store, Step("e", t, {"a": seen("a", 0)}), OutOfOrder)
    assert (error.expected, error.got) == ("t=0", f"t={t}")
    store.step(0)


def test_the_next_step_before_the_answer_to_the_last(store: ScriptedStore) -> None:
    store.store.accept(Step("e", 0, {"a": seen("a", 0)}), 0.0)
    error = refused(store, Step("e", 1, {"a": seen("a", 1)}), OutOfOrder)
    assert "awaiting action" in error.message
    error = refused(store, EndEpisode("e", 1), OutOfOrder)
    assert "awaiting action" in error.message


def test_an_end_with_another_count(store: ScriptedStore) -> None:
    store.step(0)
    error = refused(store, EndEpisode("e", 2), OutOfOrder)
    assert (error.expected, error.got) == ("t=1", "t=2")
    assert store.end(1).num_steps == 1


GOOD = {"a": seen("a", 1), "b": seen("b", 1)}
BAD_STEPS: dict[str, tuple[dict[str, Any], str | None]] = {
    "wrong shape": ({"observations": {**GOOD, "b": np.zeros(3, np.float32)}}, "b"),
    "wrong dtype": ({"observations": {**GOOD, "b": np.zeros(2)}}, "b"),
    "NaN": ({"observations": {**GOOD, "b": np.array([0, np.nan], np.float32)}}, "b"),
    "unknown observer": ({"observations": {**GOOD, "x": seen("x", 1)}}, "x"),
    "unknown rewarded": ({"rewards": {"a": 1.0, "x": 1.0}}, "x"),
    "unknown terminated": ({"terminations": {"x": True}}, "x"),
    "unknown truncated": ({"truncations": {"x": True}}, "x"),
    "reward NaN": ({"rewards": {"a": 1.0, "b": float("nan")}}, "b"),
    "reward infinite": ({"rewards": {"a": 1.0, "b": float("inf")}}, "b"),
    "done and observing": ({"terminations": {"b": True}}, "b"),
    "final observation": (
        {"observations": {"a": seen("a", 1)}, "final_observations": {"b": [1]},
         "truncations": {"b": True}}, "b"),
    "truncated without final observation": (
        {"observations": {"a": seen("a", 1)}, "truncations": {"b": True}}, "b"),
    "unknown final observation": ({"final_observations": {"x": [1, 2]}}, "x"),
    "logged action out of range": ({"logged_actions": {"b": 3}}, "b"),
    "logged action without observation": (
        {"observations": {"a": seen("a", 1)}, "logged_actions": {"b": 0}}, "b"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_STEPS)
def test_a_refused_step_leaves_the_episode_as_it_was(store: ScriptedStore, name: str) -> None:
    fields, culprit = BAD_STEPS[name]
    store.step(0)
    item = Step("e", 1, **{"observations": GOOD, "rewards": {"a": 1.0}, **fields})
    assert refused(store, item, ValueMismatch).agent_id == culprit
    assert refused(store, item, ValueMismatch).agent_id == culprit
    assert store.store.counts.num_env_steps == 0
    store.step(1, rewards={"a": 5.0})  # the same t, mended
    assert store.end(2).returns == {"a": 5.0}
    assert store.recorded("a") == ([0.0, 1.0, 1.0], [0, 1], [5.0, 0.0])


def test_a_first_step_that_is_refused_can_be_mended(store: ScriptedStore) -> None:
    refused(store, Step("e", 0, {"a": [1]}), ValueMismatch)
    store.step(0)
    assert store.end(1).num_steps == 1


def test_a_refused_end_can_be_mended(store: ScriptedStore) -> None:
    store.step(0)
    item = EndEpisode("e", 1, is_truncated=True, rewards={"a": 1.0})
    error = refused(store, item, ValueMismatch)
    assert error.agent_id == "a"
    assert error.expected == "final_observations['a']"
    item.final_observations = {"a": seen("a", 1), "b": seen("b", 1)}
    reply = store.store.accept(item, 0.0)
    assert reply.returns == {"a": 1.0}  # type: ignore[union-attr]


def test_json_lists_are_recorded_as_arrays(store: ScriptedStore) -> None:
    store.step(0, observations={"a": [97, 0], "b": [98, 0]})
    store.step(1, observations={"a": [97, 1], "b": [98, 1]})
    store.end(2)
    assert store.recorded("a")[0][:2] == [0.0, 1.0]


def test_logged_actions_reach_inference() -> None:
    store = ScriptedStore(make_plan("a"))
    store.start()
    pending = store.store.accept(Step("e", 0, {"a": seen("a", 0)}, logged_actions={"a": 2}), 0.0)
    assert isinstance(pending, PendingStep)
    assert pending.requests[0].logged_action == 2


# --- rewards --------------------------------------------------------------------------------


def test_rewards_add_up_until_an_agent_acts_again(store: ScriptedStore) -> None:
    store.step(0)
    store.step(1, "a", rewards={"a": 1.0, "b": 10.0})
    store.step(2, "a", rewards={"a": 1.0, "b": 20.0})
    store.step(3, rewards={"a": 1.0, "b": 30.0})
    assert store.end(4, rewards={"b": 1.0}).returns == {"a": 3.0, "b": 61.0}
    assert store.recorded("a")[2] == [1.0, 1.0, 1.0, 0.0]
    times, actions, rewards = store.recorded("b")
    assert times[:2] == [0.0, 3.0]
    assert (actions, rewards) == ([0, 0], [60.0, 1.0])


def test_agents_that_act_in_turns(store: ScriptedStore) -> None:
    for t in range(6):
        store.step(t, "ab"[t % 2], rewards={"a": 1.0, "b": 1.0} if t else {})
    store.end(6, rewards={"a": 1.0, "b": 1.0})
    assert store.recorded("a")[1] == [0, 2, 1]
    assert store.recorded("b")[1] == [1, 0, 2]
    assert sum(store.recorded("a")[2]) == 6.0
    # What b got before its first action is in its return, and credited to no action.
    assert sum(store.recorded("b")[2]) == 5.0


def test_a_reward_after_the_end_of_an_agent_counts_in_its_return(store: ScriptedStore) -> None:
    store.step(0)
    store.step(1, "a", terminations={"b": True}, rewards={"b": 1.0})
    store.step(2, "a", rewards={"a": 1.0, "b": 7.0})
    assert store.end(3).returns == {"a": 1.0, "b": 8.0}
    assert store.recorded("b")[2] == [1.0]


def test_what_happens_before_a_server_s_agents_first_act_is_counted(store: ScriptedStore) -> None:
    store.step(0, "a", rewards={"a": 2.0, "b": 3.0}, terminations={"b": True})
    refused(store, Step("e", 1, {"b": seen("b", 1)}), ValueMismatch)
    store.step(1, "a", rewards={"a": 1.0})
    assert store.end(2).returns == {"a": 3.0, "b": 3.0}
    assert store.recorded("a")[2] == [1.0, 0.0]


# --- ends -----------------------------------------------------------------------------------


def flags(store: ScriptedStore) -> dict[str, tuple[bool, bool]]:
    """Returns (terminated, truncated) of the one recorded episode, "" , and of its agents."""
    (chunk,) = store.chunks
    episode = chunk.episode
    singles = {a: (s.is_terminated, s.is_truncated) for a, s in episode.agent_episodes.items()}
    return {"": (episode.is_terminated, episode.is_truncated), **singles}


FINALS = {"a": seen("a", 1), "b": seen("b", 1)}
TERMINATED, TRUNCATED, RUNNING = (True, False), (False, True), (False, False)


def test_terminated(store: ScriptedStore) -> None:
    store.step(0)
    store.end(1)
    assert flags(store) == {"": TERMINATED, "a": TERMINATED, "b": TERMINATED}


@pytest.mark.parametrize("how", ["is_truncated", "truncations"])
def test_all_agents_truncated_is_no_termination(store: ScriptedStore, how: str) -> None:
    store.step(0)
    told = (
        {"is_truncated": True} if how == "is_truncated" else {"truncations": {"a": True, "b": True}}
    )
    store.end(1, final_observations=FINALS, **told)
    assert flags(store) == {"": TRUNCATED, "a": TRUNCATED, "b": TRUNCATED}
    assert store.recorded("a")[0] == [0.0, 1.0]


def test_one_terminates_and_one_is_truncated_in_the_same_step(store: ScriptedStore) -> None:
    store.step(0)
    store.end(1, truncations={"a": True}, terminations={"b": True}, final_observations=FINALS)
    assert flags(store) == {"": TRUNCATED, "a": TRUNCATED, "b": TERMINATED}


def test_one_dies_early(store: ScriptedStore) -> None:
    store.step(0)
    store.step(1, "a", terminations={"b": True}, rewards={"b": -1.0})
    store.step(2, "a")
    store.end(3, is_truncated=True, final_observations={"a": seen("a", 3)})
    assert flags(store) == {"": TRUNCATED, "a": TRUNCATED, "b": TERMINATED}
    assert store.recorded("a")[0] == [0.0, 1.0, 2.0, 3.0]
    assert store.recorded("b")[1:] == ([0], [-1.0])


def test_one_is_truncated_early(store: ScriptedStore) -> None:
    store.step(0)
    store.step(1, "a", truncations={"b": True}, final_observations={"b": seen("b", 1)})
    store.step(2, "a")
    store.end(3)
    assert flags(store) == {"": TERMINATED, "a": TERMINATED, "b": TRUNCATED}
    assert store.recorded("b")[0] == [0.0, 1.0]


def test_the_only_agent_so_far_ends_and_another_appears(store: ScriptedStore) -> None:
    store.step(0, "a")
    store.step(1, "", terminations={"a": True})
    store.step(2, "b", rewards={"b": 9.0})
    store.step(3, "b", rewards={"b": 1.0})
    assert store.end(4, rewards={"b": 1.0}).returns == {"b": 11.0}
    assert flags(store) == {"": TERMINATED, "a": TERMINATED, "b": TERMINATED}
    assert store.recorded("b")[1:] == ([2, 0], [1.0, 1.0])


def test_truncated_while_it_did_not_act_needs_no_final_observation(store: ScriptedStore) -> None:
    store.step(0)
    store.step(1, "a", rewards={"b": 1.0})
    store.step(2, "a", truncations={"b": True}, rewards={"b": 1.0})
    store.end(3)
    assert flags(store)["b"] == TRUNCATED
    assert store.recorded("b")[1:] == ([0], [2.0])


def test_all_agents_end_in_a_step_and_then_the_episode(store: ScriptedStore) -> None:
    store.step(0)
    store.step(1, "", terminations={"a": True, "b": True}, rewards={"a": 1.0})
    assert store.end(2, rewards={"a": 2.0}).returns == {"a": 3.0}
    assert flags(store) == {"": TERMINATED, "a": TERMINATED, "b": TERMINATED}
    assert store.recorded("a")[1:] == ([0], [1.0])


def test_an_agent_that_never_appears(store: ScriptedStore) -> None:
    store.step(0, "a")
    store.end(1)
    assert "b" not in flags(store)


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


# --- ends that are said again, or never -----------------------------------------------------


def test_an_end_said_again_is_answered_again(store: ScriptedStore) -> None:
    store.step(0)
    ended = store.end(1)
    assert store.end(1) is ended
    assert store.abort() is ended
    assert refused(store, Step("e", 1, {}), EpisodeGone)
    assert store.store.counts.num_episodes == 1


def test_an_id_is_used_once(store: ScriptedStore) -> None:
    assert isinstance(store.start(), Started)  # its answer may have been lost
    store.step(0)
    assert "already open" in refused(store, StartEpisode("e"), OutOfOrder).message
    store.end(1)
    assert "already over" in refused(store, StartEpisode("e"), OutOfOrder).message


def test_abort_keeps_what_there_is_as_truncated(store: ScriptedStore) -> None:
    for t in range(3):
        store.step(t, rewards={"a": 1.0} if t else {})
    assert isinstance(store.abort(), Aborted)
    assert isinstance(store.abort(), Aborted)
    assert flags(store) == {"": TRUNCATED, "a": TRUNCATED, "b": TRUNCATED}
    assert store.recorded("a") == ([0.0, 1.0, 2.0], [0, 1], [1.0, 1.0])
    counts = store.store.counts
    assert (counts.num_aborted, counts.num_episodes, counts.num_env_steps) == (1, 0, 2)
    refused(store, Step("e", 3, {}), EpisodeGone)


def test_abort_while_actions_are_awaited(store: ScriptedStore) -> None:
    store.step(0)
    pending = store.store.accept(Step("e", 1, FINALS, {"a": 1.0}), 0.0)
    assert isinstance(pending, PendingStep)
    store.abort()
    assert store.act(pending).actions == {"a": 1, "b": 1}
    assert store.recorded("a") == ([0.0, 1.0], [0], [1.0])


@pytest.mark.parametrize("num_steps", [0, 1])
def test_abort_before_anything_is_recorded(store: ScriptedStore, num_steps: int) -> None:
    for t in range(num_steps):
        store.step(t)
    store.abort()
    assert store.chunks == []


def test_an_unknown_episode(store: ScriptedStore) -> None:
    for item in (Step("nobody", 0, {}), EndEpisode("nobody", 0)):
        assert "restarted" in refused(store, item, EpisodeGone).message
    assert isinstance(store.abort("nobody"), Aborted)


def test_a_server_that_stops_starts_nothing(store: ScriptedStore) -> None:
    store.store.is_accepting = False
    refused(store, StartEpisode("f"), NotServing)
    store.step(0)


def test_too_many_episodes() -> None:
    store = ScriptedStore(make_plan(max_episodes=2))
    store.start("e")
    store.start("f")
    error = refused(store, StartEpisode("g"), TooManyEpisodes)
    assert "2 open episodes" in error.message
    store.start("e")  # a repeat is no new one
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
    assert flags(store)["a"] == TRUNCATED
    counts = store.store.counts
    assert (counts.num_expired, counts.num_aborted, store.store.num_open) == (1, 1, 1)
    error = refused(store, Step("e", 2, {}), EpisodeGone)
    assert "idle for more than 10 s" in error.message
    assert store.store.expire(18.5) == ["f"]


def test_who_waits_for_actions_is_not_idle() -> None:
    store = ScriptedStore(make_plan(episode_timeout_s=10.0))
    store.start()
    pending = store.store.accept(Step("e", 0, {"a": seen("a", 0)}), 0.0)
    assert store.store.expire(1e6) == []
    assert isinstance(pending, PendingStep)
    store.act(pending)
    assert store.store.expire(1e6) == ["e"]


def test_a_tombstone_has_its_time() -> None:
    store = ScriptedStore(make_plan(tombstone_s=30.0))
    for i, episode_id in enumerate("efg"):
        store.now = 10.0 * i
        store.start(episode_id)
        store.end(0, episode_id)
    store.store.expire(35.0)  # e is forgotten
    refused(store, EndEpisode("e", 0), EpisodeGone)
    store.end(0, "f")
    store.end(0, "g")
    store.start("e")
    store.store.expire(1e6)
    assert len(store.store._tombstones) == 1  # e, which has just expired


# --- evaluation -----------------------------------------------------------------------------


def test_evaluation_is_measured_and_never_fed() -> None:
    store = ScriptedStore(make_plan(), batch_env_steps=1)
    for episode_id in "ef":
        store.start(episode_id, mode="eval")
        pending = store.store.accept(Step(episode_id, 0, FINALS), 0.0)
        assert isinstance(pending, PendingStep)
        assert not pending.is_gated
        assert not pending.should_explore
        store.act(pending)
        store.step(1, episode_id=episode_id, rewards={"a": 1.0})
    ended = store.end(2, "e", rewards={"a": 1.0}, is_truncated=True)
    assert (ended.num_steps, ended.returns) == (2, {"a": 2.0})
    store.abort("f")
    assert store.feed.batches == []
    assert store.chunks == []
    counts = store.store.counts
    assert (counts.num_env_steps, counts.num_agent_steps, counts.num_episodes) == (0, 0, 0)
    assert counts.episode_return_mean is None


@pytest.mark.parametrize(("mode", "asked", "explores"), [
    ("train", None, True), ("train", False, False), ("eval", None, False), ("eval", True, True),
])  # fmt: skip
def test_exploration(mode: Any, asked: bool | None, explores: bool) -> None:
    store = ScriptedStore(make_plan())
    store.start(mode=mode, should_explore=asked)
    pending = store.store.accept(Step("e", 0, FINALS), 0.0)
    assert isinstance(pending, PendingStep)
    assert pending.should_explore is explores


# --- teams ----------------------------------------------------------------------------------

TEAM = {"team": ("a", "b")}


def team_store(**kwargs: Any) -> ScriptedStore:
    store = ScriptedStore(make_plan("abc", TEAM, **kwargs))
    store.start()
    return store


def last_team_observation(store: ScriptedStore) -> dict[str, np.ndarray]:
    return store.chunks[-1].episode.agent_episodes["team"].get_observations(-1)


def test_a_member_that_never_appeared_is_missed_by_name() -> None:
    store = team_store()
    error = refused(store, Step("e", 0, {"a": seen("a", 0), "c": seen("c", 0)}), ValueMismatch)
    assert error.agent_id == "b"
    assert "'team'" in error.message
    assert "'b'" in error.message
    store.step(0, "c")  # the team need not begin with the others
    refused(store, Step("e", 1, {"b": seen("b", 1)}), ValueMismatch)
    assert store.step(1, "abc").actions == {"a": 1, "b": 1, "c": 1}


def test_a_dead_member_is_padded_and_the_team_goes_on() -> None:
    store = team_store()
    store.step(0, "abc")
    reply = store.step(1, "bc", terminations={"a": True}, rewards={"a": 1.0, "b": 1.0})
    assert reply.actions.keys() == {"b", "c"}
    store.step(2, "c", terminations={"b": True}, rewards={"a": 5.0, "b": 1.0})
    ended = store.end(3, rewards={"a": 7.0})
    assert ended.returns == {"a": 13.0, "b": 2.0}
    (chunk,) = store.chunks
    team = chunk.episode.agent_episodes["team"]
    assert (team.is_terminated, team.is_truncated, len(team)) == (True, False, 2)
    assert [float(r) for r in team.get_rewards()] == [2.0, 6.0]
    alive = [observation["alive"].tolist() for observation in team.get_observations()]
    assert alive[:2] == [[1.0, 1.0], [0.0, 1.0]]
    assert chunk.episode.agent_episodes["c"].is_terminated


def test_a_team_is_truncated_if_its_last_members_are() -> None:
    store = team_store()
    store.step(0, "abc")
    store.step(1, "bc", terminations={"a": True})
    store.end(2, is_truncated=True, final_observations={m: seen(m, 2) for m in "bc"})
    (chunk,) = store.chunks
    team = chunk.episode.agent_episodes["team"]
    assert (team.is_terminated, team.is_truncated) == (False, True)
    assert last_team_observation(store)["alive"].tolist() == [0.0, 1.0]


def test_a_truncated_team_without_final_observations() -> None:
    store = team_store()
    store.step(0, "abc")
    item = EndEpisode("e", 1, True, final_observations={"c": seen("c", 1)})
    assert refused(store, item, ValueMismatch).agent_id in ("a", "b")


@pytest.mark.parametrize(("how", "expected"), [("sum", 4.0), ("mean", 2.0)])
def test_the_team_s_reward(how: Any, expected: float) -> None:
    store = team_store(team_reward=how)
    store.step(0, "abc")
    store.step(1, "abc", rewards={"a": 1.0, "b": 3.0})
    store.end(2, rewards={"a": 4.0})
    (chunk,) = store.chunks
    rewards = chunk.episode.agent_episodes["team"].get_rewards()
    assert [float(r) for r in rewards] == [expected, expected]


@pytest.mark.parametrize("state", [None, [1.0, 2.0], [1.0, 2.0, float("nan")], "three"])
def test_a_team_s_state_is_checked(state: Any) -> None:
    store = team_store(state_size=3)
    observations = {m: seen(m, 0) for m in "abc"}
    error = refused(store, Step("e", 0, observations, state=state), ValueMismatch)
    assert "global state" in error.message
    good = [1.0, 2.0, 3.0]
    store.step(0, "abc", state=good)
    store.step(1, "abc", state=good)
    end = EndEpisode("e", 2, True, final_observations=observations, state=state)
    assert "global state" in refused(store, end, ValueMismatch).message
    store.end(2, is_truncated=True, final_observations=observations, state=good)
    assert last_team_observation(store)["state"].tolist() == good


def test_a_mask_that_forbids_everything_is_the_simulation_s_fault() -> None:
    from protocol.spaces import DictSpace, MultiBinary

    masked = DictSpace({"observation": Box((2,)), "action_mask": MultiBinary(3)})
    store = ScriptedStore(make_plan({"a": masked, "b": masked}, TEAM))
    store.start()

    def observed(mask: list[int]) -> dict[str, Any]:
        return {m: {"observation": [1.0, 2.0], "action_mask": mask} for m in "ab"}

    error = refused(store, Step("e", 0, observed([0, 0, 0])), ValueMismatch)
    assert "forbids every action" in error.message
    store.step(0, observations=observed([1, 0, 0]))


def test_abort_of_an_aborted_episode_with_a_team() -> None:
    store = team_store()
    store.step(0, "abc")
    store.step(1, "abc")
    store.store.accept(AbortEpisode("e"), 0.0)
    (chunk,) = store.chunks
    team = chunk.episode.agent_episodes["team"]
    assert (team.is_terminated, team.is_truncated, len(team)) == (False, True, 1)
