"""Batches cut from many open episodes: every transition is delivered once, and none twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import tree
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.scripted_store import ScriptedStore, make_plan, seen

from muxrl.protocol.messages import EndEpisode
from muxrl.servers.episodes.far_values import FarValues
from muxrl.servers.episodes.trajectories import Chunk, Trajectory, stack
from muxrl.servers.episodes.warnings import Warnings

EPISODES = "efg"
ACTING = ("ab", "a", "b", "")
LENGTHS = st.integers(1, 9)
MOVES = st.lists(
    st.tuples(st.sampled_from(EPISODES), st.sampled_from(("step",) * 6 + ("end", "cut", "abort"))),
    max_size=60,
)


def batch_lengths(store: ScriptedStore) -> list[int]:
    return [sum(chunk.num_env_steps for chunk in batch) for batch in store.feed.batches]


class Simulations:
    """Plays episodes, each started again when it is over, and remembers what it was paid."""

    def __init__(self, store: ScriptedStore) -> None:
        self.store = store
        self.num_steps: dict[str, int] = {}
        self.paid: dict[str, Counter[str]] = {}
        self.acted: dict[str, Counter[str]] = {}
        self.aborted: set[str] = set()
        self._running: dict[str, str] = {}

    def step(self, name: str, acting: str = "ab") -> None:
        if name not in self._running:
            episode_id = self._running[name] = f"{name}{len(self.num_steps)}"
            self.num_steps[episode_id] = 0
            self.paid[episode_id], self.acted[episode_id] = Counter(), Counter()
            self.store.start(episode_id)
            acting = "ab"
        episode_id = self._running[name]
        t = self.num_steps[episode_id]
        self.store.step(t, acting, episode_id, rewards=self._rewards(episode_id))
        self.acted[episode_id].update(acting)
        self.num_steps[episode_id] += 1

    def _rewards(self, episode_id: str) -> dict[str, float]:
        t = self.num_steps[episode_id]
        if t == 0:
            return {}
        self.paid[episode_id].update({"a": t, "b": 100 * t})
        return {"a": float(t), "b": 100.0 * t}

    def close(self, name: str, how: str) -> None:
        episode_id = self._running.pop(name, None)
        if episode_id is None:
            return
        t = self.num_steps[episode_id]
        if how == "abort":
            self.store.abort(episode_id)
            self.aborted.add(episode_id)
            return
        finals = {agent: seen(agent, t) for agent in "ab"} if how == "cut" else {}
        ended = self.store.store.accept(
            EndEpisode(episode_id, t, how == "cut", self._rewards(episode_id),
                       final_observations=finals),
            0.0,
        )  # fmt: skip
        assert ended.returns == self.paid[episode_id]  # type: ignore[union-attr]

    def play(self, moves: list[tuple[str, str]]) -> None:
        for name, move in moves:
            if move == "step":
                self.step(name)
            else:
                self.close(name, move)

    def close_all(self) -> None:
        for name in EPISODES:
            self.close(name, "end")


@given(LENGTHS, MOVES)
def test_every_recorded_transition_is_delivered_exactly_once(size: int, moves: list) -> None:
    store = ScriptedStore(make_plan(), batch_env_steps=size)
    played = Simulations(store)
    played.play(moves)
    assert all(length == size for length in batch_lengths(store))
    played.close_all()
    assert sum(c.num_env_steps for c in store.chunks) == store.store.counts.num_env_steps
    for episode_id, num_steps in played.num_steps.items():
        times, actions, _ = store.recorded("a", episode_id)
        assert actions == [t % 3 for t in range(len(actions))]
        assert times[: len(actions)] == [float(t) for t in range(len(actions))]
        is_aborted = episode_id in played.aborted  # then nothing followed from its last action
        assert len(actions) == max(0, num_steps - is_aborted)


@given(LENGTHS, MOVES)
def test_every_chunk_knows_the_weights_of_each_of_its_steps(size: int, moves: list) -> None:
    store = ScriptedStore(make_plan(), batch_env_steps=size)
    played = Simulations(store)
    for i, move in enumerate(moves):
        store.weights_seq_no = i
        played.play([move])
    for chunk in store.chunks:
        assert len(chunk.weights_seq_nos) == chunk.num_env_steps > 0
        assert chunk.weights_seq_nos == sorted(chunk.weights_seq_nos)


@given(LENGTHS, MOVES)
def test_whole_episodes_only(size: int, moves: list) -> None:
    store = ScriptedStore(make_plan(), batch_env_steps=size, needs_whole_episodes=True)
    played = Simulations(store)
    played.play(moves)
    assert all(length >= size for length in batch_lengths(store))
    ids = [chunk.episode_id for chunk in store.chunks]
    assert len(ids) == len(set(ids))
    for chunk in store.chunks:
        assert chunk.is_done
        assert chunk.num_env_steps in (
            played.num_steps[chunk.episode_id], played.num_steps[chunk.episode_id] - 1
        )  # fmt: skip
    played.close_all()
    assert sum(c.num_env_steps for c in store.chunks) == store.store.counts.num_env_steps


def test_a_batch_may_hold_all_that_a_frame_brings() -> None:
    store = ScriptedStore(make_plan("a"), batch_env_steps=3, cuts_after_frames=True)
    episodes = ["e", "f", "g", "h"]
    for episode_id in episodes:
        store.start(episode_id)
    for t in range(3):
        for episode_id in episodes:
            store.step(t, "a", episode_id, rewards={"a": 1.0} if t else {})
        assert len(store.feed.batches) == max(0, t - 1), "none in the middle of a frame"
        store.store.finish_frame()
    assert [[chunk.num_env_steps for chunk in batch] for batch in store.feed.batches] == [
        [1, 1, 1, 1],
        [1, 1, 1, 1],
    ]


def test_an_aborted_episode_fills_no_batch_twice() -> None:
    store = ScriptedStore(make_plan(), batch_env_steps=3)
    store.start()
    for t in range(3):
        store.step(t)
    store.abort()
    store.start("f")
    store.step(0, episode_id="f")
    assert store.feed.batches == []
    store.step(1, episode_id="f")
    assert batch_lengths(store) == [3]


def test_a_long_episode_that_is_learned_whole_comes_in_pieces() -> None:
    store = ScriptedStore(
        make_plan(), batch_env_steps=4, needs_whole_episodes=True, max_sequence_steps=4
    )
    store.start()
    for t in range(11):
        store.step(t, rewards={"a": float(t), "b": 0.0} if t else {})
    store.end(11, rewards={"a": 11.0, "b": 0.0})
    assert [chunk.num_env_steps for chunk in store.chunks] == [4, 4, 3]
    ends = [one.is_terminated for one in store.trajectories("a")]
    assert ends == [False, False, True]
    times, _, rewards = store.recorded("a")
    assert times == [*map(float, range(11)), 10.0]  # terminated: no observation follows
    assert rewards == [float(t) for t in range(1, 12)]
    assert len(store.feed.batches) >= 1


def far_value_said(
    caplog: pytest.LogCaptureFixture, what: str, usual: float, odd: float, *, at: int = 1_150
) -> list[str]:
    """Returns what is said of one odd number among usual ones."""
    store = ScriptedStore(make_plan("a"), batch_env_steps=100)
    store.start()
    for t in range(at + 150):
        value = odd if t == at else usual
        if what == "reward":
            store.step(t, "a", rewards={"a": value} if t else {})
        else:
            store.step(t, observations={"a": np.array([value, 0.0], np.float32)})
    return [r.getMessage() for r in caplog.records if "is it a mistake?" in r.getMessage()]


@pytest.mark.parametrize(("what", "verb"), [("reward", "is"), ("observation", "holds")])
@pytest.mark.parametrize(
    ("usual", "odd", "is_said"),
    [
        (1.0, 1e5, True),
        (1.0, -1e5, True),
        (1.0, 900.0, False),
        (0.001, 10.0, False),
        (1e4, 1e5, False),
    ],
)
def test_a_number_far_outside_of_what_came_before_is_named(
    caplog: pytest.LogCaptureFixture,
    what: str,
    verb: str,
    usual: float,
    odd: float,
    is_said: bool,
) -> None:
    said = far_value_said(caplog, what, usual, odd)
    assert len(said) == is_said
    if is_said:
        assert f"{what} of 'a' in episode e {verb} {odd:.3g}, and the largest" in said[0]
        assert said[0].endswith(f"limits.max_abs_{what} refuses larger ones")


@pytest.mark.parametrize(
    ("observation", "is_said"),
    [
        (np.array([0.0, 1e6]), True),
        ({"own": {"x": np.array([1e6])}, "kind": np.array(3)}, True),
        ({"own": np.array([1_000_000])}, False),  # integers are images, and choices
        (np.full(5_000, 1e6), False),
    ],
)
def test_every_real_number_of_an_observation_is_looked_at(
    caplog: pytest.LogCaptureFixture, observation: Any, is_said: bool
) -> None:
    far = FarValues(Warnings())
    for scale in (0, 1):
        rows = stack([tree.map_structure(lambda x, s=scale: x * s, observation)] * 1_001)
        one = Trajectory("i", "e", "a", "p", rows, np.zeros(1_000, int), np.zeros(1_000), {})
        far.look_at([Chunk("e", 0, [one])])
    assert len(caplog.records) == is_said


@pytest.mark.parametrize("what", ["reward", "observation"])
def test_the_first_numbers_are_not_compared(caplog: pytest.LogCaptureFixture, what: str) -> None:
    assert not far_value_said(caplog, what, 1.0, 1e6, at=150)
