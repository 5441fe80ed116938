"""Which steps in rows are read as arrays, and that all others are read one by one."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.servers.episodes.test_rows import (
    EPISODES,
    Player,
    value_of,
)
from tests.servers.scripted_store import SEES, make_plan

from muxrl.protocol.errors import MalformedMessage, OutOfOrder, ValueMismatch
from muxrl.protocol.messages import (
    Actions,
    EndEpisode,
    StartEpisode,
    Step,
    StepRows,
)
from muxrl.protocol.spaces import Box
from muxrl.servers.agents.seating import Seating
from muxrl.servers.agents.team_seats import TeamSeat, TeamSeating
from muxrl.servers.algorithms.mappo.seats import CentralSeating
from muxrl.servers.episodes.rows import RowStep
from muxrl.servers.episodes.trajectories import stacked


def played(num_turns: int) -> Player:
    """Two agents in three episodes, all of it in rows."""
    player = Player(make_plan("ac"), Seating(), in_rows=True, batch=10**9)
    player.tell([StartEpisode(e) for e in EPISODES])
    for t in range(num_turns):
        player.tell([step_of(e, t) for e in EPISODES])
    return player


def step_of(episode_id: str, t: int, **changed: Any) -> Step:
    seen = {agent: np.array([ord(agent), t], np.float32) for agent in "ac"}
    return Step(episode_id, t, {**seen, **changed}, {"a": 1.0, "c": 0.5} if t else {})


def test_steps_do_go_in_rows() -> None:
    player = played(5)
    assert player.num_in_rows == 15


@pytest.mark.parametrize("seating", [Seating(), TeamSeating(), CentralSeating()])
def test_stacked_frames_go_in_rows_and_back(seating: Seating) -> None:
    """With an episode that begins later, and one that is told of alone for a while."""
    plan = dataclasses.replace(make_plan("ac", {"team": ("a", "c")}), frame_stack=3)
    player = Player(plan, seating, in_rows=True, batch=10**9)
    player.tell([StartEpisode(e) for e in EPISODES])
    for turn in range(9):
        steps = [step_of("e0", turn), step_of("e1", turn)]
        steps += [step_of("e2", turn - 3)] if turn >= 3 else []
        alone = [steps.pop(1)] if 4 <= turn < 6 else []
        player.tell(alone, alone)
        player.tell(steps)
    assert player.num_in_rows == 2 * 9 + 6 - 2
    for e, length in zip(EPISODES, (9, 9, 6), strict=True):
        player.store.abort(e)
        (one, *_) = player.store.chunks[-1].trajectories
        seen = stacked(one.observations)
        seen = seen["obs"] if isinstance(seen, dict) else seen
        seen = seen.reshape(length, -1, 6)[:, 0]
        assert seen[:, 1::2].tolist() == [[max(0, t - 2), max(0, t - 1), t] for t in range(length)]


@pytest.mark.parametrize("late", ["allow", "refuse"])
def test_a_team_goes_on_in_rows_without_a_member_that_has_ended(late: Any) -> None:
    plan = make_plan("ace", {"team": ("a", "c", "e")})
    plan = dataclasses.replace(plan, late_members=late)
    player = Player(plan, TeamSeating(), in_rows=True, batch=10**9)
    player.tell([StartEpisode(e) for e in EPISODES])
    for t in range(6):
        here = "ace" if t < 2 else "ac"
        rewards = dict.fromkeys("ace" if t < 3 else "ac", 1.0) if t else {}
        more: Any = {"terminations": {"e": True}} if t == 2 else {}
        player.tell([Step(e, t, {a: value_of(a, 0, t) for a in here}, rewards, **more)
                     for e in EPISODES])  # fmt: skip
    assert player.num_in_rows == 5 * len(EPISODES), "all but those in which it ends"
    if late == "allow":  # its state says who has ended, and who is only not asked
        for e in EPISODES:
            player.store.abort(e)
        (one,) = player.store.chunks[0].trajectories
        assert [row[-3:].tolist() for row in stacked(one.observations)["state"]] == (
            2 * [[0.0, 0.0, 0.0]] + 4 * [[0.0, 0.0, 1.0]]
        )
        return
    # Else a team does not begin without a member, in rows or alone.
    player.tell([StartEpisode("late")])
    with pytest.raises(ValueMismatch, match=r"without its member 'e'"):
        player.tell([Step("late", 0, {a: value_of(a, 0, 0) for a in "ac"})])


@pytest.mark.parametrize("policy_ids", ["ppp", "ace"])
def test_an_agent_that_is_absent_from_its_group_is_recorded_in_rows(policy_ids: str) -> None:
    plan = make_plan("ace", {"team": ("a", "c", "e")})
    agents = {
        a: dataclasses.replace(plan.agents[a], policy_id=policy_id)
        for a, policy_id in zip("ace", policy_ids, strict=True)
    }
    plan = dataclasses.replace(plan, agents=agents)
    player = Player(plan, CentralSeating(), in_rows=True, batch=10**9)
    player.tell([StartEpisode(e) for e in EPISODES])
    for t in range(6):  # e is not asked at first, and ends in the first episode
        here = "ace" if t == 0 else "ac"
        ends = [Step("e0", t, {a: value_of(a, 1, t) for a in here}, {"a": 1.0},
                     terminations={"e": True})] if t == 2 else []  # fmt: skip
        player.tell(ends, ends)
        player.tell([Step(e, t, {a: value_of(a, 1, t) for a in here}, {"a": 1.0} if t else {})
                     for e in EPISODES[len(ends) :]])  # fmt: skip
    assert player.num_in_rows == 6 * len(EPISODES) - 4, "all but when others act, or one ends"
    for e in EPISODES:
        player.store.abort(e)
    for chunk, departs in zip(player.store.chunks, (2, 9, 9), strict=True):
        seen = stacked(chunk.trajectories[2].observations)
        assert seen["alive"].tolist() == [[float(t == 0)] for t in range(6)]
        assert [row.any() for row in seen["obs"]] == [t == 0 for t in range(6)]
        assert [row.any() for row in seen["state"]] == [t < departs for t in range(6)]


def test_a_repeat_in_rows_gets_its_old_answer() -> None:
    player = played(3)
    steps = [step_of(e, 2) for e in EPISODES]
    first = player.tell([step_of(e, 3) for e in EPISODES])
    player.store.weights_seq_no = 9
    again = player.tell([step_of(e, 3) for e in EPISODES])
    assert again == first
    assert all(isinstance(reply, Actions) and reply.weights_seq_no == 0 for reply in again)
    assert player.store.store.counts.num_env_steps == 9
    with pytest.raises(Exception, match="awaits t=4"):
        player.tell(steps)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "uint64"])
def test_no_t_is_taken_for_another(dtype: str) -> None:
    """A client that counts in few bits is refused where they end, and not believed again at 0."""
    player = played(1)
    store = player.store.store
    for t in range(1, 300):
        item = player.packing.pack([step_of(e, t) for e in EPISODES])[0]
        item.t, item.rewards = item.t.astype(dtype), None
        if t > np.iinfo(dtype).max:
            with pytest.raises(OutOfOrder, match=f"awaits t={t}, got t={item.t[0]}"):
                player._tell(item)
            break
        player._tell(item)
    assert [store._open[e].t for e in EPISODES] == [t if t < 299 else 300] * 3
    for e in EPISODES:
        player.tell([EndEpisode(e, store._open[e].t)])
    assert {len(chunk.weights_seq_nos) for chunk in player.store.chunks} == {t if t < 299 else 300}


@pytest.mark.parametrize("num_turns", [1, 3])
def test_a_refused_step_leaves_the_answer_before_it(num_turns: int) -> None:
    player = played(num_turns - 1)
    last = [step_of(e, num_turns - 1) for e in EPISODES]
    answers = player.tell(last)
    with pytest.raises(ValueMismatch, match="agent 'a'"):
        player._tell(step_of("e1", num_turns, a=np.zeros(7, np.float32)))
    assert player._tell(Step("e1", num_turns - 1, {})) == answers[1]
    assert player.tell(last) == answers
    for t in (num_turns, num_turns + 1):
        player.tell([step_of(e, t) for e in EPISODES])
    ended = player.tell([EndEpisode(e, num_turns + 2) for e in EPISODES])
    assert [one.returns["a"] for one in ended] == [num_turns + 1.0] * 3


def test_one_bad_value_is_refused_by_name_and_the_others_go_on() -> None:
    player = played(2)
    bad = np.array([np.nan, 0.0], np.float32)
    item = player.packing.pack([step_of("e0", 2), step_of("e1", 2, c=bad), step_of("e2", 2)])[0]
    steps = player.store.store.accept_rows(item, 0.0)
    assert isinstance(steps, list), "rows with a bad value are read one by one"
    player._tell(steps[0])
    with pytest.raises(ValueMismatch, match=r"agent 'c'.*NaN"):
        player._tell(steps[1])
    player._tell(steps[2])
    assert [player.store.store._open[e].t for e in EPISODES] == [3, 2, 3]


def test_a_step_that_waits_in_rows_is_aborted_alone() -> None:
    player = played(2)
    item = player.packing.pack([step_of(e, 2) for e in EPISODES])[0]
    waiting = player.store.store.accept_rows(item, 0.0)
    player.store.abort("e1")
    waiting.finish([player._chosen(waiting, 0)], 0)
    (chunk,) = player.store.chunks
    assert (chunk.num_env_steps, chunk.is_truncated) == (2, True)
    player.tell([step_of("e0", 3), step_of("e2", 3)])
    assert player.store.store.num_open == 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"t": [0]}, "t in rows"),
        ({"t": np.zeros(3, np.float32)}, "integer t"),
        ({"t": np.ones((3, 2), np.int64)}, "t in rows"),
        ({"rewards": np.zeros((3, 2, 2))}, "rewards in rows"),
        ({"t": np.full(3, 2**64 - 1, np.uint64)}, "no t=18446744073709551615"),
        ({"agents": ["a", "nobody"]}, "no agent 'nobody'"),
        ({"agents": [""]}, "no agent ''"),
        ({"agents": ["a", "a"]}, "named twice"),
        ({"observations": []}, "kinds of observations"),
        ({"observations": [np.zeros((2, 2, 2), np.float32)]}, "observations of 'a'"),
        ({"rewards": np.zeros((3, 1))}, "rewards in rows"),
        ({"episode_ids": [], "t": np.zeros(0, int)}, "at least one episode"),
    ],
)
def test_rows_that_do_not_hang_together(change: dict[str, Any], sentence: str) -> None:
    player = played(1)
    good = {
        "episode_ids": list(EPISODES),
        "t": np.ones(3, np.int64),
        "observations": [np.zeros((3, 2, 2), np.float32)],
        "agents": ["a", "c"],
        "rewards": np.zeros((3, 2)),
    }
    with pytest.raises(MalformedMessage, match=sentence):
        player.store.store.accept_rows(StepRows(**{**good, **change}), 0.0)
    assert isinstance(player.store.store.accept_rows(StepRows(**good), 0.0), RowStep)


def test_values_beyond_their_bounds_are_read_one_by_one() -> None:
    plan = make_plan({"a": Box((1,))}, max_abs_observation=10.0, max_abs_reward=5.0)
    player = Player(plan, Seating(), in_rows=True, batch=10**9)
    player.tell([StartEpisode("e0"), StartEpisode("e1")])
    for t, (observation, reward, is_row) in enumerate(
        [(1.0, 0.0, True), (9.9, 5.0, True), (10.1, 0.0, False), (0.0, 5.1, False)]
    ):
        steps = [
            Step(
                e, min(t, 2), {"a": np.array([observation], np.float32)}, {"a": reward} if t else {}
            )
            for e in ("e0", "e1")
        ]
        (item,) = player.packing.pack(steps)
        if is_row:
            player.tell(steps)
        else:
            assert isinstance(player.store.store.accept_rows(item, 0.0), list)
    assert player.num_in_rows == 4


class OwnSeat(TeamSeat):
    """A class without a bench."""


class OwnSeating(TeamSeating):
    """Somebody's own."""

    seat_class = OwnSeat  # type: ignore[assignment]


def test_agents_that_are_read_one_by_one_are_soon_told_so() -> None:
    plan = make_plan({"a": SEES, "c": SEES}, {"team": ("a", "c")})
    player = Player(plan, OwnSeating(), in_rows=True, batch=10**9)
    player.tell([StartEpisode(e) for e in EPISODES])
    for t in range(8):
        vector = np.array([0, t], np.float32)
        items = [Step(e, t, {"a": vector, "c": vector}) for e in EPISODES]
        told = player.packing.pack(items)
        assert (len(told) == 1) == (t < 3), t
        player.tell(items)
    assert player.store.store._open["e0"].t == 8


def test_a_reward_before_the_first_action_is_in_the_return_alone() -> None:
    player = Player(make_plan("a"), Seating(), in_rows=True, batch=10**9)
    player.tell([StartEpisode("e0")])
    rows = StepRows(
        episode_ids=["e0"],
        t=np.zeros(1, np.int64),
        observations=[np.zeros((1, 1, 2), np.float32)],
        rewards=np.full((1, 1), 2.5),
    )
    (step,) = player.store.store.accept_rows(rows, 0.0)
    player._tell(step)
    player.tell([Step("e0", 1, {"a": np.zeros(2, np.float32)}, {"a": 1.0})])
    assert player.store.store._open["e0"].returns == {"a": 3.5}
    player.store.abort("e0")
    (one,) = player.store.trajectories("a")
    assert list(one.rewards) == [1.0]
