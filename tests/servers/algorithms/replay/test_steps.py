"""The replay of steps: every stored step is drawn, and each as it was played."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ray.rllib.core.columns import Columns

from muxrl.servers.algorithms.replay.steps import StepReplay
from muxrl.servers.episodes.trajectories import Trajectory

GAMMA = 0.5
LAST = 10
MORE = 1_000
"""By how much the numbers of a life exceed those of the life before."""
KINDS = {"uniform": None, "prioritized": (0.6, 0.4)}


def make(kind: str, capacity: int, n_step: int = 1) -> StepReplay:
    return StepReplay(capacity, 0, n_step=n_step, gamma=GAMMA, by_priority=KINDS[kind])


def trajectory(first: int, length: int, life: int = 0, **flags: bool) -> Trajectory:
    """Returns a piece whose step t observes t, acts t + 0.5 and earns 10 t, from t = `first` on."""
    ts = np.arange(first, first + length + 1) + MORE * life
    return Trajectory(
        f"e{life}_a", f"e{life}", "a", "p",
        observations=np.array([np.full(2, t, np.float32) for t in ts]),
        actions=np.array([np.full(3, t + 0.5, np.float32) for t in ts[:-1]]),
        rewards=10.0 * ts[:-1],
        outputs={},
        t=first,
        **flags,
    )  # fmt: skip


def play(replay: StepReplay, begin: int, num: int = 1, num_agents: int = 2) -> None:
    """Adds `num` episodes of `LAST` steps, numbered from `begin`, in pieces of all agents."""
    for episode in range(begin, begin + num):
        for first in range(0, LAST, 3):
            length = min(3, LAST - first)
            for life in range(num_agents * episode, num_agents * (episode + 1)):
                replay.add(trajectory(first, length, life, is_terminated=first + length == LAST))


def drawn(replay: StepReplay, num: int) -> list[tuple[Any, ...]]:
    """Draws steps; returns of each: observed, observed next, action, reward, terminated, n,
    weight."""
    batch = replay.sample(num)
    names = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS, Columns.REWARDS,
             Columns.TERMINATEDS, "n_step", "weights")  # fmt: skip
    return list(zip(*(batch[name].tolist() for name in names), strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_episodes", [0, 2, 9])
def test_a_restored_replay_draws_and_drops_as_the_first_would(kind: str, num_episodes: int) -> None:
    first, second = make(kind, 64, 2), make(kind, 64, 2)
    for i in range(num_episodes):
        play(first, i)
        if kind == "prioritized":
            rows = first.sample(40)["rows"]
            first.update_priorities(rows, np.linspace(0.1, 2.0, 99)[rows])
    second.set_state(first.get_state())
    assert len(second) == len(first)
    assert second.num_bytes == first.num_bytes
    for i in range(num_episodes, num_episodes + 8):
        for replay in (first, second):
            play(replay, i)
        assert drawn(second, 40) == drawn(first, 40)
        if kind == "prioritized":
            for replay in (first, second):
                rows = replay.sample(40)["rows"]
                replay.update_priorities(rows, np.linspace(0.1, 2.0, 99)[rows])
        assert len(second) == len(first)


@pytest.mark.parametrize("kind", KINDS)
def test_a_larger_replay_goes_on_with_the_steps_of_a_smaller_one(kind: str) -> None:
    first, second = make(kind, 20), make(kind, 50)
    play(first, 0, 7, num_agents=1)
    second.set_state(first.get_state())
    before = {(tuple(o), r) for o, _, _, r, *_ in drawn(first, 500)}
    assert {(tuple(o), r) for o, _, _, r, *_ in drawn(second, 500)} == before
    for i in range(20):
        play(second, 7 + i, num_agents=1)
        assert len(second) <= 50
    assert len(drawn(second, 50)) == 50


def test_a_smaller_replay_refuses_what_does_not_fit() -> None:
    first = make("uniform", 64)
    play(first, 0, 9)
    with pytest.raises(ValueError, match="64 steps were kept, and the replay now holds 32"):
        make("uniform", 32).set_state(first.get_state())


def test_steps_that_were_drawn_uniformly_can_be_drawn_by_priority() -> None:
    first, second = make("uniform", 64), make("prioritized", 64)
    play(first, 0)
    second.set_state(first.get_state())
    assert {o[0] for o, *_ in drawn(second, 200)} == {
        t + MORE * i for t in range(LAST) for i in (0, 1)
    }


@pytest.mark.parametrize("kind", KINDS)
def test_many_agents_of_one_policy_fill_the_replay_to_its_capacity(kind: str) -> None:
    replay = make(kind, 64)
    for i in range(30):
        play(replay, i, num_agents=6)
        assert len(replay) <= 64
    assert len(replay) > 40
    assert len(drawn(replay, 50)) == 50


pieces = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from(["", "is_terminated", "is_truncated"])),
    min_size=1,
    max_size=12,
)


@given(pieces, st.integers(2, 40))
def test_a_full_replay_holds_the_newest_steps(
    given_pieces: list[tuple[int, str]], capacity: int
) -> None:
    replay = make("uniform", capacity)
    played: list[tuple[float, float]] = []
    t = num_rows = 0
    goes_on = False
    for length, end in given_pieces:
        flags = {end: True} if end else {}
        assert replay.add(trajectory(t, length, **flags)) == length
        played += [
            (t + i, float(end == "is_terminated" and i == length - 1)) for i in range(length)
        ]
        t += length
        num_rows += (length + (not goes_on)) if length else 0
        goes_on = not end if length else goes_on
    if not played:
        assert not len(replay)
        return
    if num_rows <= capacity:
        assert len(replay) == len(played)
    assert len(replay) <= capacity
    steps = drawn(replay, 300)
    assert {(o[0], terminated) for o, _, _, _, terminated, *_ in steps} == set(
        played[-len(replay) :]
    )
    for observed, following, action, reward, *_ in steps:
        assert following[0] == observed[0] + 1
        assert action == [observed[0] + 0.5] * 3
        assert reward == 10.0 * observed[0]


LIVES = st.lists(st.tuples(st.integers(0, 3), pieces.map(lambda given: given[0])), max_size=60)


def of_lives(played: list[tuple[int, tuple[int, str]]], *, in_arrays: bool = False) -> Any:
    """Returns pieces of four agents' lives; the pieces of several agents are interleaved."""
    ts, lives, found = [0] * 4, [0, 1, 2, 3], []
    for number, (length, end) in played:
        flags = {end: True} if end and length else {}
        one = trajectory(ts[number], length, lives[number], **flags)
        if in_arrays and number % 2 and length:
            one.observations, one.actions = np.array(one.observations), np.array(one.actions)
        found.append(one)
        ts[number] += length
        if flags:
            ts[number], lives[number] = 0, lives[number] + 4
    return found


@given(LIVES, st.integers(2, 200), st.sampled_from(list(KINDS)), st.integers(1, 5))
def test_a_step_is_drawn_as_it_was_played_with_those_after_it(
    played: list[tuple[int, tuple[int, str]]], capacity: int, kind: str, n_step: int
) -> None:
    """A return is over n steps, or over as many as there are; without an end it goes up to the
    newest observation."""
    replay, known, num_rows = make(kind, capacity, n_step), {}, 0
    steps: set[float] = set()
    for one in of_lives(played):
        replay.add(one)
        if len(one):
            num_rows += len(one) + (one.t == 0)
            known[one.observations[0][0] // MORE] = one.observations[-1][0], one.is_terminated
            steps |= {float(seen[0]) for seen in one.observations[:-1]}
    found = drawn(replay, 1_000) if steps else []
    for observed, following, action, reward, terminated, k, _ in found:
        last, is_terminated = known[observed[0] // MORE]
        assert observed[0] in steps
        assert k == min(n_step, last - observed[0])
        assert following[0] == observed[0] + k
        assert action == [observed[0] + 0.5] * 3
        assert reward == pytest.approx(sum(GAMMA**i * 10 * (observed[0] + i) for i in range(k)))
        assert terminated == (is_terminated and following[0] == last)
    if num_rows <= min(capacity, 60):
        assert {observed[0] for observed, *_ in found} == steps


@given(
    LIVES,
    st.lists(st.integers(1, 9), min_size=1, max_size=9),
    st.integers(2, 40),
    st.sampled_from(list(KINDS)),
    st.booleans(),
)
@example(  # a new piece that would lie where the one before it continues from
    [(0, (2, "")), (1, (4, "is_terminated")), (0, (1, "")), (2, (6, ""))],
    [1, 1, 2],
    10,
    "uniform",
    False,
)
def test_several_at_once_are_stored_as_one_by_one(
    played: list[tuple[int, tuple[int, str]]],
    sizes: list[int],
    capacity: int,
    kind: str,
    in_arrays: bool,
) -> None:
    given = of_lives(played, in_arrays=in_arrays)
    single, several = make(kind, capacity), make(kind, capacity)
    begin = 0
    while begin < len(given):
        together = given[begin : begin + sizes[begin % len(sizes)]]
        assert several.add(*together) == sum(map(single.add, together))
        begin += len(together)
    assert len(several) == len(single)
    states = [single.get_state(), several.get_state()]
    for state in states:  # lives that can no longer be continued are dropped only now and then
        oldest = state["num_added"] - capacity - 1
        state["open"] = sorted(one for one in state["open"] if one[1] >= oldest)
    np.testing.assert_equal(*states)


def test_each_observation_of_an_episode_in_pieces_is_stored_once() -> None:
    in_pieces, whole = make("uniform", 100), make("uniform", 100)
    for t in range(20):
        in_pieces.add(trajectory(t, 1))
    whole.add(trajectory(0, 20))
    assert in_pieces.num_bytes == whole.num_bytes == 21 * (2 * 4 + 3 * 4 + 9)
