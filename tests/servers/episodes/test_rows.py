"""Steps in rows: which are read together, which one by one, and what an episode's slot
remembers."""

from __future__ import annotations

import dataclasses
import gc
from typing import Any

import numpy as np
import pytest
from tests.servers import packing
from tests.servers.episodes.players import Player, all_of, plain
from tests.servers.episodes.test_one_path import CASES, plan_of, value_of
from tests.servers.scripted_store import ScriptedStore, make_plan

from muxrl.protocol.errors import MalformedMessage, OutOfOrder, ValueMismatch
from muxrl.protocol.messages import AbortEpisode, EndEpisode, StartEpisode, Step, StepRows
from muxrl.protocol.spaces import Box, DictSpace, Discrete, MultiBinary, MultiDiscrete, Space
from muxrl.servers.agents.seating import Seating
from muxrl.servers.episodes.blocks import Awaited, Block
from muxrl.servers.episodes.reward_scale import RewardScale

EPISODES = ("e0", "e1", "e2")


def player_of(case: str, *, batch: int = 10**9, is_scaled: bool = False, **fields: Any) -> Player:
    """Returns a player of one of the cases, whose episodes have begun."""
    plan = plan_of(case, **fields)
    scales = {p.policy_id: RewardScale(0.9) for p in plan.agents.values()} if is_scaled else {}
    store = ScriptedStore(plan, batch, seating=CASES[case][2], reward_scales=scales)
    player = Player(store)
    player.tell([StartEpisode(e) for e in EPISODES])
    return player


def step_of(player: Player, episode_id: str, t: int, here: str = "", number: int = 0) -> Step:
    plan = player.store.plan
    agents = here or "".join(plan.agents)
    state = None if plan.state_size is None else np.array([number, t], np.float32)
    seen = {a: value_of(a, number, t) for a in agents}
    return Step(episode_id, t, seen, dict.fromkeys(agents, 0.5) if t else {}, state=state)


def played(num_turns: int) -> Player:
    """Returns a player of two agents in three episodes, after some steps in rows."""
    player = Player(ScriptedStore(make_plan("ac"), seating=Seating()))
    player.tell([StartEpisode(e) for e in EPISODES])
    for t in range(num_turns):
        player.tell([step_of(player, e, t) for e in EPISODES])
    return player


def rows_of(player: Player, steps: list[Step]) -> StepRows:
    return packing.rows_of(player.store.plan.agents, steps)


# --- what goes in rows ----------------------------------------------------------------------


def test_a_discrete_observation_with_a_dimension_more_is_refused_by_name() -> None:
    store = ScriptedStore(make_plan({"a": Discrete(5)}), seating=Seating())
    player = Player(store)
    player.tell([StartEpisode("e")])
    one = np.zeros((1, 1, 2), np.int64)
    item = StepRows(episode_ids=["e"], t=np.zeros(1, np.int64), observations=[one])
    (single,) = store.store.accept_rows(item, 0.0)
    with pytest.raises(ValueMismatch, match="observation of agent 'a'"):
        store.store.accept(single, 0.0)


@pytest.mark.parametrize("case", CASES)
def test_agents_that_come_late_pause_and_come_again_stay_in_rows(case: str) -> None:
    player = player_of(case, late_members="allow", normalize_observations=True, is_scaled=True)
    agents = "".join(player.store.plan.agents)
    first, rest = agents[0], agents[1:]
    turns = [first, agents, rest, first, agents, agents]
    for t, here in enumerate(turns):
        player.tell([step_of(player, e, t, here) for e in EPISODES])
    assert player.num_in_rows == len(turns) * len(EPISODES)
    for e in EPISODES:
        player.store.abort(e)
    assert [chunk.num_env_steps for chunk in player.store.chunks] == [len(turns) - 1] * 3


def test_a_team_goes_on_in_rows_when_a_member_has_ended() -> None:
    player = player_of("central team", late_members="allow")
    for t in range(5):
        here = "abc" if t < 2 else "ab"
        steps = [step_of(player, e, t, here) for e in EPISODES]
        if t == 2:
            for step in steps:
                step.terminations = {"c": True}
        player.tell(steps)
    assert player.num_in_rows == 4 * len(EPISODES), "all but those in which it ends"


def test_modes_share_a_message_and_evaluations_are_in_no_statistics() -> None:
    plan = dataclasses.replace(plan_of("central team"), normalize_observations=True)
    player = Player(ScriptedStore(plan, seating=CASES["central team"][2]))
    modes: list[tuple[Any, bool | None]] = [
        ("train", None),
        ("eval", None),
        ("train", False),
        ("eval", True),
    ]  # the modes of the episodes in one message
    names = [*EPISODES, "e3"]
    player.tell([StartEpisode(e, *mode) for e, mode in zip(names, modes, strict=True)])
    for t in range(3):
        item = rows_of(player, [step_of(player, e, t, number=i) for i, e in enumerate(names)])
        outcome: Any = player.store.store.accept_rows(item, 0.0)
        told = [(one.mode.is_training, one.mode.should_explore) for one in outcome.blocks]
        assert told == [(True, True), (False, False), (True, False), (False, True)]
        player.act(outcome)
    assert player.store.store.counts.num_env_steps == 4
    state = player.store.observing.get_state()
    counts = [one["count"] for kinds in state["policies"].values() for one in kinds.values()]
    assert counts == [2 * 2 * 3], "of a and c, who observe numbers, in two episodes of three"


# --- slots ----------------------------------------------------------------------------------


@pytest.mark.parametrize("num", [1, 3])
def test_a_long_episode_holds_no_block_for_every_step(num: int) -> None:
    player = Player(ScriptedStore(make_plan("ac"), seating=Seating()))
    names = EPISODES[:num]
    # Episodes begin at different turns, so that their records are put together at different times.
    for i, e in enumerate(names):
        player.tell([StartEpisode(e)])
        for t in range(50 * (num - 1 - i)):
            player.tell([step_of(player, e, t)])
    before = sum(type(one) is Block for one in gc.get_objects())
    for turn in range(1_000):
        at = [turn + 50 * (num - 1 - i) for i in range(num)]
        player.tell([step_of(player, e, t) for e, t in zip(names, at, strict=True)])
    gc.collect()
    assert sum(type(one) is Block for one in gc.get_objects()) - before <= 257
    for e, t in zip(names, at, strict=True):
        player.tell([EndEpisode(e, t + 1, rewards={"a": 1.0})])
    assert [chunk.num_env_steps for chunk in player.store.chunks] == [t + 1 for t in at]
    seen = player.store.trajectories("a")[0].observations
    np.testing.assert_array_equal(seen[:1_000, 1], np.arange(1_000))


def test_episodes_that_begin_together_are_a_slice_whatever_was_open_beside_them() -> None:
    player = Player(ScriptedStore(make_plan("ac"), seating=Seating()))
    table = player.store.store._table
    player.tell([StartEpisode(e) for e in EPISODES])
    player.tell([StartEpisode("evaluated", mode="eval")])
    player.tell([AbortEpisode("e1"), AbortEpisode("evaluated"), StartEpisode("e1-next")])
    player.tell([AbortEpisode(e) for e in ("e2", "e0")])
    player.tell([StartEpisode(e) for e in ("e0-next", "e2-next")])
    assert [table.slot_of[f"{e}-next"] for e in EPISODES] == [0, 1, 2]


def test_blocks_of_episodes_that_are_over_are_freed_without_the_garbage_collector() -> None:
    """Left to the garbage collector, the blocks of 256 episodes that end at once stop the server
    for long."""
    player = Player(ScriptedStore(make_plan("ac"), seating=Seating()))
    before = sum(type(one) is Block for one in gc.get_objects())
    gc.disable()
    try:
        for i in range(10):
            names = [f"{e}-{i}" for e in EPISODES]
            player.tell([StartEpisode(e) for e in names])
            for t in range(5):
                player.tell([step_of(player, e, t) for e in names])
            player.tell([EndEpisode(e, 5) for e in names])
        assert sum(type(one) is Block for one in gc.get_objects()) - before <= 5
    finally:
        gc.enable()
    assert len(player.store.chunks) == 30


def observed_and_chosen(player: Player, episode_id: str, agents: str) -> list[Any]:
    """Plays an episode; returns what its policies read, earned and chose, and its record."""
    player.tell([StartEpisode(episode_id)])
    found = []
    for t, here in enumerate([agents, agents[:1], agents]):
        awaited: Any = player.store.store.accept(step_of(player, episode_id, t, here), 0.0)
        player.act(awaited)
        block = awaited.blocks[0]
        chosen = [(one.actions, one.outputs, one.states) for one in block.chosen]
        found.append(plain((tuple(block.observations), tuple(block.rewards), tuple(chosen))))
    player.store.end(3, episode_id, rewards={agents[0]: 2.0}, **_state_of(player))
    (record,) = [c for c in player.store.chunks if c.episode_id == episode_id]
    return [*found, [one[1:] for one in all_of([record])]]


def _state_of(player: Player) -> dict[str, Any]:
    size = player.store.plan.state_size
    return {} if size is None else {"state": np.zeros(size, np.float32)}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("how", ["end", "abort"])
def test_a_new_episode_remembers_nothing_of_the_one_before_in_its_slot(case: str, how: str) -> None:
    stack = 1 if case == "a trainer's" else 3
    fields: dict[str, Any] = {"late_members": "allow", "frame_stack": stack, "is_scaled": False}
    used, fresh = player_of(case, **fields), player_of(case, **fields)
    agents = "".join(used.store.plan.agents)
    for t, here in enumerate([agents, agents[:1], agents[:1]]):
        steps = [step_of(used, e, t, here, number=7) for e in EPISODES]
        # An agent that pauses gets its reward, too, and is paid when it acts again.
        for step in steps:
            step.rewards = dict.fromkeys(agents, 9.0) if t else {}
        used.tell(steps)
    for e in EPISODES:
        if how == "abort":
            used.tell([AbortEpisode(e)])
        else:
            used.tell([EndEpisode(e, 3, **_state_of(used))])
        fresh.tell([AbortEpisode(e)])
    assert used.store.store.num_open == 0
    for name in EPISODES:
        expected = observed_and_chosen(fresh, name + "+", agents)
        assert observed_and_chosen(used, name + "+", agents) == expected


def test_discounted_rewards_are_those_of_one_episode() -> None:
    """A reward scale learns from all episodes, but its discounted sum begins anew with each."""
    adds = []
    for is_one in (True, False):
        player = player_of("alone", is_scaled=True)
        player.tell([step_of(player, e, 0) for e in EPISODES])
        if not is_one:
            player.tell([EndEpisode(e, 1) for e in EPISODES])
            player.tell([StartEpisode(e + "+") for e in EPISODES])
            player.tell([step_of(player, e + "+", 0) for e in EPISODES])
        memory = player.store.store._seats.memory
        adds.append(memory.discounted.tolist())
    assert adds[0] == adds[1]
    assert not np.any(adds)


@pytest.mark.parametrize("case", ["alone", "team", "central team", "joint critics"])
def test_actions_that_come_after_an_abort_are_not_the_next_episode_s(case: str) -> None:
    player, fresh = (player_of(case, frame_stack=2) for _ in range(2))
    late: Any = player.store.store.accept_rows(
        rows_of(player, [step_of(player, e, 0) for e in EPISODES]), 0.0
    )
    player.tell([AbortEpisode("e1")])
    player.tell([StartEpisode("next")])
    fresh.tell([AbortEpisode("e1"), StartEpisode("next")])
    steps = [step_of(player, "next", t, number=5) for t in range(3)]
    waiting: Any = player.store.store.accept(steps[0], 0.0)
    assert waiting.blocks[0].where == slice(1, 2), "the slot is taken again"
    player.act(late)
    answers = [player.act(waiting), *player.tell(steps[1:2]), *player.tell(steps[2:])]
    expected = [fresh.tell([step])[0] for step in steps]
    assert plain([a.actions for a in answers][1]) == plain([a.actions for a in expected][1])
    for one in (player, fresh):
        one.store.abort("next")
    assert all_of(player.store.chunks[-1:]) == all_of(fresh.store.chunks[-1:])
    player.tell([step_of(player, e, 1) for e in ("e0", "e2")])
    assert player.num_in_rows == 4, "e0 and e2 go on, as next has in its last two steps"


# --- what is read one by one ----------------------------------------------------------------


def test_rows_before_the_last_answer_or_with_an_episode_twice_are_read_one_by_one() -> None:
    player = played(3)
    item, after = (rows_of(player, [step_of(player, e, t) for e in EPISODES]) for t in (3, 4))
    waiting: Any = player.store.store.accept_rows(item, 0.0)
    steps: Any = player.store.store.accept_rows(after, 0.0)
    with pytest.raises(OutOfOrder, match="awaiting action"):
        player.accept(steps[0])
    player.act(waiting)
    assert isinstance(player.store.store.accept_rows(after, 0.0), Awaited)
    player = played(0)
    twice = rows_of(player, [step_of(player, e, 0) for e in ("e0", "e0", "e2")])
    assert isinstance(player.store.store.accept_rows(twice, 0.0), list)


def test_rows_with_a_waiting_or_ended_episode_are_read_one_by_one() -> None:
    player = played(3)
    waiting: Any = player.store.store.accept(step_of(player, "e0", 3), 0.0)
    player.tell([step_of(player, e, 3) for e in ("e1", "e2")])
    item = rows_of(player, [step_of(player, e, 4) for e in EPISODES])
    assert isinstance(player.store.store.accept_rows(item, 0.0), list)
    player.act(waiting)
    ends = [step_of(player, e, 4, "a") for e in EPISODES]
    for step in ends:
        step.terminations = {"c": True}
    player.tell(ends)
    after = rows_of(player, [step_of(player, e, 5) for e in EPISODES])
    (first, *_) = player.store.store.accept_rows(after, 0.0)  # type: ignore[misc]
    with pytest.raises(ValueMismatch, match="agent 'c' is done in this episode"):
        player.accept(first)


def test_a_t_of_few_bits_and_a_state_are_read_as_rows() -> None:
    player = player_of("team and another")
    item = rows_of(player, [step_of(player, e, 0) for e in EPISODES])
    item.t = item.t.astype(np.int32)
    player.accept(item)
    assert player.num_in_rows == 3


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "uint64"])
def test_a_t_that_overflows_its_dtype_is_refused(dtype: str) -> None:
    """If a client's t overflows its dtype, the step is refused, and t=0 is not taken for the next
    one."""
    player = played(1)
    most = min(299, int(np.iinfo(dtype).max))
    for t in range(1, 300):
        item = rows_of(player, [step_of(player, e, t) for e in EPISODES])
        item.t, item.rewards = item.t.astype(dtype), None
        if t > most:
            with pytest.raises(OutOfOrder, match=f"awaits t={t}, got t={item.t[0]}"):
                player.accept(item)
            break
        player.accept(item)
    player.tell([EndEpisode(e, most + 1) for e in EPISODES])
    assert {chunk.num_env_steps for chunk in player.store.chunks} == {most + 1}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"t": [0]}, "t of a step in rows"),
        ({"t": np.zeros(3, np.float32)}, "integer t"),
        ({"t": np.ones((3, 2), np.int64)}, "t of a step in rows"),
        ({"rewards": np.zeros((3, 2, 2))}, "rewards of a step in rows"),
        ({"t": np.full(3, 2**64 - 1, np.uint64)}, "no step t=18446744073709551615"),
        ({"agents": ["a", "nobody"]}, "no agent 'nobody'"),
        ({"agents": [""]}, "no agent ''"),
        ({"agents": ["a", "a"]}, "named twice"),
        ({"observations": []}, "observations came for 0 spaces"),
        ({"observations": [np.zeros((2, 2, 2), np.float32)]}, "observations of 'a'"),
        ({"rewards": np.zeros((3, 1))}, "rewards of a step in rows"),
        ({"episode_ids": [], "t": np.zeros(0, int)}, "at least one episode"),
        ({"logged_actions": []}, "logged actions came for 0 spaces, .* have 1"),
        ({"logged_actions": [np.zeros((3, 1), int)]}, "logged actions of 'a' of a step in rows"),
        ({"logged_log_probs": np.zeros(3)}, "logged_log_probs of a step in rows"),
        ({"logged_log_probs": "none"}, "logged_log_probs of a step in rows"),
    ],
)
def test_rows_of_inconsistent_sizes_are_refused(change: dict[str, Any], sentence: str) -> None:
    store = played(1).store.store
    good = {
        "episode_ids": list(EPISODES),
        "t": np.ones(3, np.int64),
        "observations": [np.zeros((3, 2, 2), np.float32)],
        "agents": ["a", "c"],
        "rewards": np.zeros((3, 2)),
    }
    with pytest.raises(MalformedMessage, match=sentence):
        store.accept_rows(StepRows(**{**good, **change}), 0.0)
    assert isinstance(store.accept_rows(StepRows(**good), 0.0), Awaited)


MASKED = DictSpace({"obs": Box((1,)), "action_mask": MultiBinary(3)})


@pytest.mark.parametrize(
    ("space", "logged", "words"),
    [
        (Box((1,)), {"logged_actions": [[0], [3]]}, "logged action of agent 'a': expected"),
        (MASKED, {"logged_actions": [[0], [1]]}, "its action mask forbids 1"),
        (Box((1,)), {"logged_actions": [[0], [1]], "logged_log_probs": [[np.nan], [0.5]]},
         "is it a probability"),
        (Box((1,)), {"logged_log_probs": [[np.nan], [-0.5]]}, "without the logged action"),
    ],
)  # fmt: skip
def test_logged_actions_that_nobody_can_have_chosen_are_refused_alone(
    space: Space, logged: dict[str, Any], words: str
) -> None:
    plan = make_plan({"a": space})
    player = Player(ScriptedStore(plan, seating=Seating()))
    player.tell([StartEpisode("e0"), StartEpisode("e1")])
    value: Any = np.zeros(1, np.float32)
    if space is MASKED:
        value = {"obs": value, "action_mask": np.array([1, 0, 1])}
    item = rows_of(player, [Step(e, 0, {"a": value}) for e in ("e0", "e1")])
    if "logged_actions" in logged:
        item.logged_actions = [np.array(logged["logged_actions"])]
    if "logged_log_probs" in logged:
        item.logged_log_probs = np.array(logged["logged_log_probs"])
    first, second = player.store.store.accept_rows(item, 0.0)  # type: ignore[misc]
    player.accept(first)
    with pytest.raises(ValueMismatch, match=words) as refused:
        player.accept(second)
    assert refused.value.agent_id == "a"
    assert space is not MASKED or refused.value.expected == "one of [0, 2]"
    if "logged_actions" in logged:
        item = rows_of(player, [Step(e, t, {"a": value}) for e, t in (("e0", 1), ("e1", 0))])
        item.logged_actions = [np.array([[2], [0]])]
        (block,) = player.store.store.accept_rows(item, 0.0).blocks  # type: ignore[union-attr]
        assert block.logged is not None
        assert block.logged[0].actions.tolist() == [[2], [0]]
        assert player.store.store.counts.num_logged_actions == 3


def test_values_beyond_their_bounds_are_read_one_by_one() -> None:
    plan = make_plan({"a": Box((1,))}, max_abs_observation=10.0, max_abs_reward=5.0)
    player = Player(ScriptedStore(plan, seating=Seating()))
    player.tell([StartEpisode("e0"), StartEpisode("e1")])
    tried = [(1.0, 0.0, True), (9.9, 5.0, True), (10.1, 0.0, False), (0.0, 5.1, False)]
    for t, (observation, reward, is_row) in enumerate(tried):
        seen = {"a": np.array([observation], np.float32)}
        rewards = {"a": reward} if t else {}
        steps = [Step(e, min(t, 2), seen, rewards) for e in ("e0", "e1")]
        if is_row:
            player.tell(steps)
        else:
            assert isinstance(player.store.store.accept_rows(rows_of(player, steps), 0.0), list)
    assert player.num_in_rows == 4


@pytest.mark.parametrize(
    ("space", "allowed", "beyond"),
    [
        (Discrete(3, start=-1), 1, 2),
        (Discrete(3, start=-1), -1, -2),
        (MultiDiscrete((2, 3)), [1, 2], [1, 3]),
        (MultiDiscrete((2, 3)), [0, 0], [-1, 0]),
        (MultiBinary(2), [1, 1], [1, 2]),
    ],
)
def test_rows_with_whole_numbers_beyond_a_space_are_read_one_by_one(
    space: Space, allowed: Any, beyond: Any
) -> None:
    player = Player(ScriptedStore(make_plan({"a": space}), seating=Seating()))
    player.tell([StartEpisode("e0"), StartEpisode("e1")])
    for value, kind in ((beyond, list), (allowed, Awaited)):
        steps = [Step(e, 0, {"a": np.array(value)}) for e in ("e0", "e1")]
        assert isinstance(player.store.store.accept_rows(rows_of(player, steps), 0.0), kind)


def test_a_reward_before_the_first_action_is_in_the_return_alone() -> None:
    player = played(0)
    item = rows_of(player, [step_of(player, e, 0) for e in EPISODES])
    item.rewards = np.full((3, 2), 2.5)
    assert player.accept(item).replies
    player.tell([step_of(player, e, 1) for e in EPISODES])
    assert player.store.end(2, "e0").returns == {"a": 3.0, "c": 3.0}
    (one,) = player.store.trajectories("a")
    assert one.rewards.tolist() == [0.5, 0.0]
