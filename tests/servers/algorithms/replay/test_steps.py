"""The replay of steps: every stored step is drawn, and each as it was played."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.rllib.core.columns import Columns

from muxrl.servers.algorithms.replay.priorities import PrioritySettings
from muxrl.servers.algorithms.replay.steps import StepReplay
from muxrl.servers.episodes.trajectories import Trajectory

GAMMA = 0.5
LAST = 10
KINDS = {"uniform": None, "prioritized": PrioritySettings(0.6, 0.4)}


def make(kind: str, capacity: int, n_step: int = 1) -> StepReplay:
    return StepReplay(capacity, 0, n_step=n_step, gamma=GAMMA, by_priority=KINDS[kind])


def play(
    replay: StepReplay, episode_id: str, agents: str, length: int = LAST, every: int = 3
) -> None:
    """Adds an episode in chunks. Observations are (t, agent), actions are t, rewards t + 1; the
    last agent acts in every second step only."""
    for begin, end in pairwise([0, *range(1, length, every), length]):
        for number, agent in enumerate(agents):
            steps = list(pairwise([*range(0, length, 2 if agent == agents[-1] else 1), length]))
            t = sum(u <= begin for _, u in steps)
            if own := [step for step in steps[t:] if step[1] <= end]:
                replay.add(piece(episode_id, agent, number, t, own, is_last=end == length))


def piece(
    episode_id: str,
    agent: str,
    number: int,
    before: int,
    steps: Sequence[tuple[int, int]],
    *,
    is_last: bool,
) -> Trajectory:
    """Returns transitions from one t to another, with so many before them."""
    times = np.array([steps[0][0], *(u for _, u in steps)], np.float32)
    return Trajectory(
        f"{episode_id}_{agent}", episode_id, agent, "shared",
        observations=np.stack([times, np.full(len(times), number, np.float32)], axis=1),
        actions=np.array([t for t, _ in steps]),
        rewards=np.array([float(sum(range(t + 1, u + 1))) for t, u in steps]),
        outputs={},
        t=before,
        is_terminated=is_last,
    )  # fmt: skip


def drawn(replay: StepReplay, num: int) -> list[tuple[Any, ...]]:
    """Draws steps: observed, observed next, action, reward, terminated, n, weight."""
    batch = replay.sample(num)
    names = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS, Columns.REWARDS,
             Columns.TERMINATEDS, "n_step", "weights")  # fmt: skip
    return list(zip(*(batch[name].tolist() for name in names), strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_step", [1, 2, 3])
def test_every_step_drawn_is_one_that_was_played(kind: str, n_step: int) -> None:
    replay = make(kind, 10_000, n_step)
    for i in range(5):
        play(replay, f"e{i}", "ab")
    steps = drawn(replay, 200)
    assert {agent for (_, agent), *_ in steps} == {0, 1}
    ends = 0
    for (first, agent), (last, agent_again), action, reward, terminated, k, _ in steps:
        stride = 1 if agent == 0 else 2
        assert agent == agent_again
        assert last == min(first + n_step * stride, LAST)
        assert action == first
        taken = np.arange(first, last, stride)
        assert k == len(taken)
        # An agent that does not act in a step is paid for it all the same.
        rewards = [sum(range(int(t) + 1, min(int(t) + stride, LAST) + 1)) for t in taken]
        assert reward == pytest.approx(sum(GAMMA**i * r for i, r in enumerate(rewards)))
        assert terminated == (last == LAST)
        ends += terminated
    assert ends > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_episodes", [0, 2, 9])
def test_a_restored_replay_draws_and_drops_as_the_first_would(kind: str, num_episodes: int) -> None:
    first, second = make(kind, 64, 2), make(kind, 64, 2)
    for i in range(num_episodes):
        play(first, f"e{i}", "ab")
        if kind == "prioritized":
            rows = first.sample(40)["rows"]
            first.update_priorities(rows, np.linspace(0.1, 2.0, 99)[rows])
    second.set_state(first.get_state())
    assert len(second) == len(first)
    assert second.num_bytes == first.num_bytes
    for i in range(num_episodes, num_episodes + 8):
        for replay in (first, second):
            play(replay, f"e{i}", "ab")
        assert drawn(second, 40) == drawn(first, 40)
        if kind == "prioritized":
            for replay in (first, second):
                rows = replay.sample(40)["rows"]
                replay.update_priorities(rows, np.linspace(0.1, 2.0, 99)[rows])
        assert len(second) == len(first)


@pytest.mark.parametrize("kind", KINDS)
def test_a_larger_replay_goes_on_with_the_steps_of_a_smaller_one(kind: str) -> None:
    first, second = make(kind, 20), make(kind, 50)
    for i in range(7):
        play(first, f"e{i}", "a")
    second.set_state(first.get_state())
    before = {(tuple(o), r) for o, _, _, r, *_ in drawn(first, 500)}
    assert {(tuple(o), r) for o, _, _, r, *_ in drawn(second, 500)} == before
    for i in range(20):
        play(second, f"f{i}", "a")
        assert len(second) <= 50
    assert len(drawn(second, 50)) == 50


def test_a_smaller_replay_refuses_what_does_not_fit_and_any_what_is_older() -> None:
    first = make("uniform", 64)
    for i in range(9):
        play(first, f"e{i}", "ab")
    with pytest.raises(ValueError, match="64 steps were kept, and the replay now holds 32"):
        make("uniform", 32).set_state(first.get_state())
    with pytest.raises(ValueError, match="an earlier version"):
        make("uniform", 32).set_state({"columns": {}, "next": 0, "num_stored": 0})


def test_steps_that_were_drawn_uniformly_can_be_drawn_by_priority() -> None:
    first, second = make("uniform", 64), make("prioritized", 64)
    play(first, "e", "ab")
    second.set_state(first.get_state())
    assert {o[0] for o, *_ in drawn(second, 200) if o[1] == 0} == set(range(LAST))


@pytest.mark.parametrize("kind", KINDS)
def test_many_agents_of_one_policy_fill_the_replay_to_its_capacity(kind: str) -> None:
    replay = make(kind, 64)
    for i in range(30):
        play(replay, f"e{i}", "abcdef")
        assert len(replay) <= 64
    assert len(replay) > 40
    assert len(drawn(replay, 50)) == 50


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_an_episode_whose_beginning_has_left_the_replay(kind: str) -> None:
    replay = make(kind, 40)
    for t in range(60):
        replay.add(piece("slow", "a", 0, t, [(t, t + 1)], is_last=False))
        if t % 5 == 0:
            play(replay, f"e{t}", "ab", length=4 if t % 10 else 44, every=2)
        for (first, agent), (last, _), action, *_ in drawn(replay, 20):
            assert (last, action) == (first + (1 if agent == 0 else 2), first)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_step", [1, 2, 3, 5])
def test_every_step_is_drawn_the_last_ones_with_the_steps_that_there_are(
    kind: str, n_step: int
) -> None:
    replay = make(kind, 1_000, n_step)
    play(replay, "e", "ab", length=4)
    steps = {o[0]: rest for o, *rest in drawn(replay, 400) if o[1] == 0}
    assert sorted(steps) == [0, 1, 2, 3]
    for t, (following, _, reward, terminated, num, _) in steps.items():
        k = min(n_step, 4 - int(t))
        assert num == k
        assert following[0] == t + k
        assert reward == sum(GAMMA**i * (t + i + 1) for i in range(k))
        assert terminated == (t + k == 4)


@pytest.mark.parametrize("is_truncated", [False, True])
def test_without_an_end_it_is_bootstrapped_from_the_newest_observation(is_truncated: bool) -> None:
    replay = make("uniform", 100, 5)
    replay.add(trajectory(0, 2, is_truncated=is_truncated))
    for observed, following, *_, terminated, k, _ in drawn(replay, 30):
        assert following[0] == 2
        assert k == 2 - observed[0]
        assert not terminated


def trajectory(first: int, length: int, **flags: bool) -> Trajectory:
    """Step t observes t, acts t + 0.5 and earns 10 t; `first` is the first t."""
    ts = range(first, first + length)
    return Trajectory(
        "life", "episode", "a", "p",
        observations=[np.full(2, t, np.float32) for t in [*ts, first + length]],
        actions=[np.full(3, t + 0.5, np.float32) for t in ts],
        rewards=[10.0 * t for t in ts],
        outputs={},
        t=first,
        **flags,
    )  # fmt: skip


pieces = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from(["", "is_terminated", "is_truncated"])),
    min_size=1,
    max_size=12,
)


@given(pieces, st.integers(2, 40))
def test_it_holds_the_newest_steps(given_pieces: list[tuple[int, str]], capacity: int) -> None:
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
        with pytest.raises(ValueError, match="the replay is empty"):
            replay.sample(1)
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


@given(
    st.lists(st.tuples(st.integers(0, 3), pieces.map(lambda given: given[0])), max_size=60),
    st.lists(st.integers(1, 9), min_size=1, max_size=9),
    st.integers(2, 40),
    st.sampled_from(list(KINDS)),
    st.booleans(),
)
def test_several_at_once_are_stored_as_one_by_one(
    played: list[tuple[int, tuple[int, str]]],
    sizes: list[int],
    capacity: int,
    kind: str,
    in_arrays: bool,
) -> None:
    ts, rounds = [0] * 4, [0] * 4
    given: list[Trajectory] = []
    for number, (length, end) in played:
        name = f"{number}_{rounds[number]}"
        flags = {end: True} if end and length else {}
        one = dataclasses.replace(trajectory(ts[number], length, **flags), id=name, episode_id=name)
        if in_arrays and number % 2 and length:
            one.observations, one.actions = np.array(one.observations), np.array(one.actions)
        given.append(one)
        ts[number] += length
        if flags:
            ts[number], rounds[number] = 0, rounds[number] + 1
    single, several = make(kind, capacity), make(kind, capacity)
    begin = 0
    while begin < len(given):
        together = given[begin : begin + sizes[begin % len(sizes)]]
        assert several.add(*together) == sum(map(single.add, together))
        begin += len(together)
    states = [single.get_state(), several.get_state()]
    for state in states:  # who cannot be gone on from any more is forgotten now and then
        oldest = state["num_added"] - capacity - 1
        state["open"] = sorted(one for one in state["open"] if one[1] >= oldest)
    np.testing.assert_equal(*states)


def test_each_observation_of_an_episode_in_pieces_is_stored_once() -> None:
    in_pieces, whole = make("uniform", 100), make("uniform", 100)
    for t in range(20):
        in_pieces.add(trajectory(t, 1))
    whole.add(trajectory(0, 20))
    assert in_pieces.num_bytes == whole.num_bytes == 21 * (2 * 4 + 3 * 4 + 9)
