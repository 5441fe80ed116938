"""Steps in which a client acted itself are recorded once, as the server's own, or refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.servers.packing import rows_of
from tests.servers.scripted_store import ACTS, ScriptedStore, make_plan, seen

from muxrl.protocol.errors import EpisodeGone, OutOfOrder, ProtocolError, ValueMismatch
from muxrl.protocol.messages import PlayedRows, PlayedSteps, Recorded, Step, StepRows
from muxrl.servers.agents.log_probs import DISTRIBUTION, LOG_PROB
from muxrl.servers.episodes import reading
from muxrl.servers.episodes.played import PlayedCheck

LOGITS = np.array([0.5, -1.0, 2.0], np.float32)


class PlayedStore(ScriptedStore):
    """A store that takes played steps, and whose weights have version 5."""

    def __init__(self, batch_env_steps: int = 10**9, **kwargs: Any) -> None:
        super().__init__(make_plan(), batch_env_steps, **kwargs)
        self.version = 5
        check = PlayedCheck(self.plan.agents, "", lambda: self.version, max_lag=1)
        self.store._played_check = check
        self.start()

    def play(self, item: PlayedSteps) -> Recorded:
        reply = self.store.accept(item, self.now)
        assert isinstance(reply, Recorded)
        return reply

    def outputs(self, name: str, seat_id: str = "a") -> np.ndarray:
        found = [one.outputs[name] for one in self.trajectories(seat_id)]
        return np.concatenate([np.asarray(column) for column in found])


def played(
    first: int, last: int, version: int = 5, agents: str = "ab", episode_id: str = "e"
) -> PlayedSteps:
    """Returns steps in which each agent took action ``t % 3``; rewards are ``t``."""
    steps = [
        Step(
            episode_id,
            t,
            {a: seen(a, t) for a in agents},
            {a: float(t) for a in agents if t},
            logged_actions=dict.fromkeys(agents, t % ACTS.n),
        )
        for t in range(first, last)
    ]
    logits = {a: np.tile(LOGITS, (len(steps), 1)) for a in agents}
    return PlayedSteps(episode_id, version, steps, logits)


def test_a_played_step_in_which_nobody_observes_is_refused() -> None:
    store = PlayedStore()
    with pytest.raises(ValueMismatch, match="no agent observes in step t=0"):
        store.play(PlayedSteps("e", 5, [Step("e", 0, {})]))
    assert store.play(played(0, 4)).num_steps == 4


def test_played_steps_are_recorded_as_the_servers_own() -> None:
    store = PlayedStore()
    assert store.play(played(0, 4)).num_steps == 4
    store.end(4, rewards={"a": 4.0, "b": 4.0})
    assert store.recorded("a")[1:] == ([0, 1, 2, 0], [1.0, 2.0, 3.0, 4.0])
    probabilities = np.exp(LOGITS) / np.exp(LOGITS).sum()
    np.testing.assert_allclose(
        np.exp(store.outputs(LOG_PROB)), probabilities[[0, 1, 2, 0]], rtol=1e-6
    )
    np.testing.assert_array_equal(store.outputs(DISTRIBUTION), [LOGITS] * 4)
    assert [chunk.weights_seq_nos for chunk in store.chunks] == [[5] * 4]
    counts = store.store.counts
    assert (counts.num_env_steps, counts.num_agent_steps, counts.num_stale_steps) == (4, 8, 0)
    assert counts.num_logged_actions == 0  # the server's policy chose the actions


def test_the_same_steps_twice_are_recorded_once() -> None:
    store = PlayedStore()
    store.play(played(0, 3))
    assert store.play(played(0, 3)).num_steps == 3
    assert store.play(played(1, 5)).num_steps == 5
    store.end(5, rewards={"a": 5.0})
    assert store.recorded("a")[2] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert store.store.counts.num_agent_steps == 10
    assert store.play(played(1, 5)).num_steps == 5, "its end was in the same frame"
    assert "is over" in str(store.refused(played(1, 6), EpisodeGone))


def test_played_steps_may_alternate_with_steps_in_which_the_server_acts() -> None:
    store = PlayedStore()
    store.play(played(0, 2))
    assert store.step(2, rewards={"a": 2.0}).actions == {"a": 2, "b": 2}
    assert store.play(played(0, 2)).num_steps == 3, "a repeat of the whole frame"
    assert store.play(played(3, 4)).num_steps == 4
    assert "awaits t=4" in str(store.refused(played(5, 6), OutOfOrder))


def test_batches_are_cut_where_they_are_complete() -> None:
    store = PlayedStore(batch_env_steps=4)
    assert store.play(played(0, 3)).num_wanted == 2
    assert store.play(played(3, 7)).num_wanted == 2
    assert [sum(c.num_env_steps for c in batch) for batch in store.feed.batches] == [4]
    reply = Recorded("e", 0)
    store.store.refresh(reply, num_clients=2)
    assert (reply.num_wanted, reply.weights_seq_no) == (1, 5)


def in_rows(store: PlayedStore, items: list[PlayedSteps]) -> list[PlayedRows]:
    """Returns played steps of several episodes, equally many of each, as rows: one item for each
    step."""
    agents, found = store.plan.agents, []
    for place, steps in enumerate(zip(*(item.steps for item in items), strict=True)):
        rows = rows_of(agents, steps)
        rows.logged_log_probs = None
        fields = {name: getattr(rows, name) for name in StepRows.__struct_fields__}
        acting = steps[0].observations
        logits = [np.array([[item.logits[a][place] for a in acting] for item in items])]
        found.append(PlayedRows(**fields, weights_seq_no=items[0].weights_seq_no, logits=logits))
    return found


def first_of_two() -> tuple[PlayedStore, PlayedRows]:
    """Returns a store with two open episodes, and rows with the first step of both."""
    store = PlayedStore()
    store.start("f")
    (item,) = in_rows(store, [played(0, 1, episode_id=e) for e in "ef"])
    return store, item


@pytest.mark.parametrize("batch", [5, 10**9])
@pytest.mark.parametrize("version", [3, 5])
def test_rows_are_recorded_as_the_steps_of_each_episode_are(batch: int, version: int) -> None:
    """Rows are recorded like single steps, also stale ones, and if a batch is complete within a
    step."""
    stores = [PlayedStore(batch), PlayedStore(batch)]
    for store in stores:
        store.start("f")
    turns = [[played(t, t + 1, version, episode_id=e) for e in "ef"] for t in range(4)]
    for turn in turns:
        for one in turn:
            stores[0].play(one)
        (item,) = in_rows(stores[1], turn)
        for _ in range(2):  # the second time is a repeat, which is recorded once
            reply = stores[1].store.play_rows(item, 0.0)
            for one in [reply] if isinstance(reply, Recorded) else reply:
                assert isinstance(one, Recorded)
    for store in stores:
        store.end(4, "e", rewards={"a": 4.0})
        store.end(4, "f")
    first, second = stores
    assert [c.num_env_steps for b in first.feed.batches for c in b] == [
        c.num_env_steps for b in second.feed.batches for c in b
    ]
    assert vars(first.store.counts) == vars(second.store.counts)
    assert first.store.counts.num_stale_steps == (16 if version == 3 else 0)
    for name in (LOG_PROB, DISTRIBUTION):
        for seat_id in "ab":
            np.testing.assert_allclose(
                first.outputs(name, seat_id), second.outputs(name, seat_id), rtol=1e-6
            )
    assert first.recorded("b") == second.recorded("b")


def told(store: PlayedStore, one: PlayedSteps | Recorded) -> int | str:
    """Returns how many steps of an episode are recorded, or the message of a refusal."""
    try:
        return one.num_steps if isinstance(one, Recorded) else store.play(one).num_steps
    except EpisodeGone as error:
        return error.message


def test_rows_of_unknown_episodes_are_refused_without_reading_them_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands of rows are refused at once if a frame comes again, or reaches a restarted
    server."""
    stores = [PlayedStore(), PlayedStore()]
    for store in stores:
        for episode_id in "fgh":
            store.start(episode_id)
        store.play(played(0, 1, episode_id="f"))
        store.play(played(0, 1, episode_id="g"))
        store.end(1, "g")
        store.now = 7.0
    items = [played(0, 1, episode_id=e) for e in ("e", "f", "g", "h", *map(str, range(500)))]
    singly = [told(stores[0], one) for one in items]
    monkeypatch.setattr(reading, "singles", None)
    (rows,) = in_rows(stores[1], items)
    outcome = stores[1].store.play_rows(rows, 7.0)
    assert not isinstance(outcome, Recorded)
    *gone, repeated, new = outcome
    assert [told(stores[1], one) for one in gone] == [singly[2], *singly[4:]]
    assert singly[2] == 1
    assert "does not know episode 499" in str(singly[-1])
    assert repeated == new == Recorded("", 0, 5, num_wanted=10**9 - 1)
    for store in stores:
        table = store.store._table
        assert [table.seen_at[table.slot_of[e]] for e in "efh"] == [7.0] * 3
    assert vars(stores[0].store.counts) == vars(stores[1].store.counts)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"logits": []}, "logits of agent 'a': expected"),
        ({"logits": [np.zeros((2, 2, 3))]}, ""),
        ({"logits": [np.full((2, 2, 3), np.nan, np.float32)]}, "logits of agent 'a': .*NaN"),
        ({"logits": [np.full((2, 2, 3), [0.0, 90.0, 0.0], np.float32)]}, "cannot have been drawn"),
        ({"states": {"team": np.zeros((2, 3), np.float32)}}, "must come with the recurrent states"),
        ({"logged_log_probs": np.zeros((2, 2))}, "and no log-probabilities"),
    ],
)
def test_rows_with_something_wrong_are_refused_for_each_episode(
    change: dict[str, Any], words: str
) -> None:
    store, item = first_of_two()
    singles = store.store.play_rows(replace(item, **change), 0.0)
    assert not isinstance(singles, Recorded)
    for one in singles:
        if words:
            assert re.search(words, store.refused(one, ValueMismatch).message)
        else:  # numbers of another dtype are taken
            assert store.play(one).num_steps == 1
    assert store.store.counts.num_agent_steps == (0 if words else 4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"weights_seq_no": 6}, "never had weights of version 6"),
        ({"logits": [np.zeros((2, 1, 3))]}, "logits of 'a' of a step in rows"),
        ({"states": {"team": np.zeros(3)}}, "states of 'team' of a step in rows"),
        ({"logged_actions": None}, "logged actions came for 0 spaces, .* have 1"),
    ],
)
def test_rows_that_do_not_hang_together_are_refused_as_a_whole(
    change: dict[str, Any], words: str
) -> None:
    store, item = first_of_two()
    with pytest.raises(ProtocolError, match=words):
        store.store.play_rows(replace(item, **change), 0.0)
    assert store.store.counts.num_agent_steps == 0
    assert isinstance(store.store.play_rows(item, 0.0), Recorded)


def test_evaluation_is_measured_and_not_recorded() -> None:
    store = PlayedStore()
    store.abort()
    store.start("v", mode="eval")
    reply = store.play(played(0, 3, episode_id="v"))
    assert (reply.num_steps, reply.num_wanted) == (3, 0)
    assert store.end(3, "v").returns == {"a": 3.0, "b": 3.0}
    assert store.chunks == []


def test_steps_by_too_old_weights_teach_no_policy_and_are_counted() -> None:
    store = PlayedStore()
    store.play(played(0, 2, version=4))  # a server's own actions can be as old
    store.play(played(2, 4, version=3))
    store.end(4)
    assert np.isinf(store.outputs(LOG_PROB)).tolist() == [False, False, True, True]
    assert store.chunks[0].weights_seq_nos == [4, 4, 3, 3]
    assert store.store.counts.num_stale_steps == 4


def test_a_refusal_names_its_step_and_leaves_those_before_it() -> None:
    store = PlayedStore()
    item = played(0, 4)
    item.steps[2].observations["b"] = np.zeros(3, np.float32)
    refusal = store.refused(item, ValueMismatch)
    assert "step t=2: observation of agent 'b': expected Box(2,)" in refusal.message
    assert store.play(played(0, 4)).num_steps == 4
    store.end(4)
    assert store.store.counts.num_env_steps == 4


def changed(change: Callable[[PlayedSteps], object]) -> PlayedSteps:
    """Returns two played steps after a change that makes them wrong."""
    item = played(0, 2)
    change(item)
    return item


def logits_of_b(*rows: list[float]) -> PlayedSteps:
    return changed(lambda item: item.logits.update(b=np.array(rows, np.float32)))


WITH_NAN = np.array([LOGITS, [0.0, np.nan, 0.0]], np.float32)


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (
            changed(lambda x: x.logits.pop("b")),
            r"logits of agent 'b': expected Box\(2, 3\) flo",
        ),
        (logits_of_b([0.5, -1.0, 2.0]), r"logits of agent 'b': .* got shape \(1, 3\)"),
        (changed(lambda x: x.logits.update(a=WITH_NAN)), r"of agent 'a': .* NaN at index \[1, 1\]"),
        (logits_of_b([-3e38, 3e38, 3e38], [0.0] * 3), "of agent 'b' has the log-probability -inf"),
        (changed(lambda x: x.steps[1].logged_actions.pop("a")), "t=1 was played by a client"),
        (
            changed(lambda x: x.steps[0].logged_actions.update(a=3)),
            "t=0: logged action of agent 'a'",
        ),
        (
            changed(lambda x: setattr(x.steps[1], "episode_id", "f")),
            "step of episode 'f' came among",
        ),
        (changed(lambda x: x.logits.update(c=x.logits["a"])), r"agents that did not act: \['c'\]"),
        (played(0, 2, version=6), "never had weights of version 6"),
        (played(0, 2, version=-1), "never had weights of version -1"),
        (played(0, 2, agents="abz"), "no agent 'z' here"),
    ],
)
def test_impossible_played_steps_are_refused_by_name(item: PlayedSteps, words: str) -> None:
    store = PlayedStore()
    assert re.search(words, store.refused(item, ProtocolError).message)
    store.end(0)
    assert store.chunks == []


def test_an_action_too_unlikely_to_be_drawn_is_refused_in_its_step() -> None:
    """The tiny probability of such an action would make a learner's ratios infinite and its weights
    NaN."""
    store = PlayedStore()
    refusal = store.refused(logits_of_b([0.0, 0.0, 0.0], [90.0, 0.0, 0.0]), ValueMismatch)
    assert (refusal.agent_id, refusal.expected, refusal.got) == ("b", "at least -80", "-90")
    assert "step t=1: by its logits, the logged action of agent 'b'" in refusal.message
    store.end(1)
    assert store.store.counts.num_env_steps == 1


def test_a_server_that_gives_no_weights_takes_no_steps() -> None:
    store = ScriptedStore(make_plan())
    store.start()
    assert "has no networks to give" in store.refused(played(0, 1), ValueMismatch).message
    check = PlayedCheck(store.plan.agents, "it has an LSTM", lambda: 0, max_lag=1)
    store.store._played_check = check
    assert store.refused(played(0, 1), ValueMismatch).message.endswith(
        "with local inference: it has an LSTM"
    )


def test_a_replay_reads_no_logits_and_learns_from_actions_of_any_age() -> None:
    store = PlayedStore(batch_env_steps=4)
    store.store._played_check = PlayedCheck(
        store.plan.agents, "", lambda: store.version, max_lag=None, epsilon=lambda: 0.25
    )
    item = played(0, 3, version=0)
    assert "server's learner reads none" in store.refused(item, ValueMismatch).message
    item.logits = {}
    reply = store.play(item)
    assert (reply.num_steps, reply.num_wanted, reply.epsilon) == (3, 64, 0.25)
    store.end(3, rewards={"a": 3.0})
    assert store.recorded("a")[1:] == ([0, 1, 2], [1.0, 2.0, 3.0])
    (chunk,) = store.chunks
    assert chunk.weights_seq_nos == [0, 0, 0], "lag is measured all the same"
    assert all(LOG_PROB not in one.outputs for one in chunk.trajectories)
    assert store.store.counts.num_stale_steps == 0
