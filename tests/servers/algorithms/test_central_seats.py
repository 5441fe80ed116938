"""How agents whose critic sees the state are recorded, in groups and alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.servers.scripted_store import ScriptedStore, each, make_plan, seen

from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.messages import Step
from muxrl.protocol.spaces import Box, DictSpace, MultiBinary, Space, leaf_type
from muxrl.servers.agents.keys import AGENT_ID, ALIVE, STATE
from muxrl.servers.agents.seating import MASKED_AGENTS, Seating
from muxrl.servers.algorithms.settings.actor_critic import CENTRAL
from muxrl.servers.episodes.trajectories import Trajectory
from muxrl.servers.gymnasium_spaces import spaces_of

TEAM = {"team": ("a", "b")}


def central_store(agents: str | dict[str, Space] = "ab", **kwargs: Any) -> ScriptedStore:
    fields = {k: kwargs.pop(k) for k in ("use_global_state", "late_members") if k in kwargs}
    plan = replace(make_plan(agents, **kwargs), **fields)
    store = ScriptedStore(plan, seating=CENTRAL)
    store.start()
    return store


def steps_of(store: ScriptedStore, agent: str) -> Trajectory:
    (one,) = store.trajectories(agent)
    space, _ = spaces_of(store.seats[agent])
    assert all(space.contains(o) for o in each(one.observations))
    return one


def column(one: Trajectory, key: str) -> list[list[float]]:
    found: list[list[float]] = one.observations[key].tolist()
    return found


def paid(one: Trajectory) -> list[float]:
    return [float(reward) for reward in one.rewards]


# --- what is seen ---------------------------------------------------------------------------


def test_without_groups_each_agent_has_its_reward_its_id_and_all_observations() -> None:
    store = central_store()
    assert store.step(0).actions == {"a": 0, "b": 0}
    store.step(1, rewards={"a": 1.0, "b": 2.0})
    store.end(2, rewards={"a": 3.0}, terminations={"a": True, "b": True})
    a, b = steps_of(store, "a"), steps_of(store, "b")
    assert column(a, "obs")[:2] == [[ord("a"), 0], [ord("a"), 1]]
    assert column(a, STATE)[:2] == [[ord("a"), t, ord("b"), t] for t in (0, 1)]
    assert column(b, STATE) == column(a, STATE)
    assert column(a, AGENT_ID)[0] == [1, 0]
    assert column(b, AGENT_ID)[0] == [0, 1]
    assert ALIVE not in a.observations
    assert paid(a) == [1.0, 3.0]
    assert paid(b) == [2.0, 0.0]


def test_the_simulations_state_takes_precedence_over_observations() -> None:
    store = central_store(state_size=3)
    store.step(0, state=np.array([7, 8, 9], np.float32))
    store.step(1, state=np.array([1, 2, 3], np.float32))
    store.end(2)
    assert column(steps_of(store, "b"), STATE)[:2] == [[7, 8, 9], [1, 2, 3]]


def test_a_missing_state_is_refused_before_anything_is_recorded() -> None:
    store = central_store(state_size=3)
    with pytest.raises(ValueMismatch, match="global state"):
        store.step(0)
    assert store.step(0, state=np.zeros(3, np.float32)).actions == {"a": 0, "b": 0}


@pytest.mark.parametrize("uses_it", [True, False])
def test_an_observed_state_is_shown_to_the_critic_only(uses_it: bool) -> None:
    space = DictSpace({"obs": Box((2,)), "state": Box((3,))})
    store = central_store({"a": space, "b": space}, use_global_state=uses_it)
    predicted = {"obs": np.array([4, 5], np.float32), "state": np.array([7, 8, 9], np.float32)}
    store.step(0, observations={"a": predicted, "b": predicted})
    store.end(1)
    a = steps_of(store, "a")
    assert column(a, "obs")[0] == [4, 5]
    assert column(a, STATE)[0] == ([7, 8, 9] if uses_it else [4, 5, 4, 5])


def test_absent_agents_are_zeros_in_the_state() -> None:
    store = central_store()
    store.step(0)
    store.step(1, "a", rewards={"b": 1.0}, terminations={"b": True})
    store.end(2)
    a, b = steps_of(store, "a"), steps_of(store, "b")
    assert column(a, STATE)[1] == [ord("a"), 1, 0, 0]
    assert len(a) == 2
    assert len(b) == 1
    assert b.is_terminated


def test_with_late_members_the_state_marks_departed_agents() -> None:
    store = central_store(groups=TEAM, late_members="allow")
    store.step(0, "a")
    store.step(1, "a", terminations={"b": True})
    store.end(2, terminations={"a": True})
    states = column(steps_of(store, "a"), STATE)
    assert states[:2] == [[ord("a"), 0, 0, 0, 0, 0], [ord("a"), 1, 0, 0, 0, 1]]


def test_a_truncated_agent_is_bootstrapped_from_the_others_current_observations() -> None:
    store = central_store()
    store.step(0)
    final = np.array([50, 51], np.float32)
    store.step(1, "a", final_observations={"b": final}, truncations={"b": True})
    store.end(2)
    b = steps_of(store, "b")
    assert b.is_truncated
    assert column(b, STATE)[-1] == [ord("a"), 1, 50, 51]


# --- groups ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "expected"), [("sum", [3.0, 4.0]), ("mean", [1.5, 2.0])])
def test_members_get_the_teams_reward(how: str, expected: list[float]) -> None:
    store = central_store(groups=TEAM, team_reward=how)
    store.step(0)
    store.step(1, rewards={"a": 1.0, "b": 2.0})
    assert store.end(2, rewards={"a": 4.0}).returns == {"a": 5.0, "b": 2.0}
    for agent in "ab":
        assert paid(steps_of(store, agent)) == expected


def test_departed_agents_are_recorded_by_id_and_get_the_teams_reward() -> None:
    store = central_store(groups=TEAM)
    store.step(0)
    assert store.step(1, "a", rewards={"b": -1.0}, terminations={"b": True}).actions == {"a": 1}
    assert store.step(2, "a", rewards={"a": 5.0}).actions == {"a": 2}
    store.end(3, rewards={"a": 7.0}, terminations={"a": True})
    b = steps_of(store, "b")
    assert column(b, ALIVE)[:3] == [[1], [0], [0]]
    assert column(b, AGENT_ID) == [[0, 1]] * 4
    assert column(b, "obs")[1:3] == [[0, 0], [0, 0]]
    assert column(b, STATE)[1:3] == [[0, 0, 0, 0]] * 2
    assert paid(b) == [-1.0, 5.0, 7.0]
    assert b.is_terminated
    assert not b.is_truncated


def test_a_member_that_does_not_act_is_recorded_with_the_state() -> None:
    store = central_store(groups=TEAM, state_size=1)
    states = [np.full(1, t, np.float32) for t in range(3)]
    assert store.step(0, "a", state=states[0]).actions == {"a": 0}
    assert store.step(1, "b", state=states[1], rewards={"b": 1.0}).actions == {"b": 1}
    store.end(2)
    a, b = steps_of(store, "a"), steps_of(store, "b")
    assert column(a, ALIVE)[:2] == [[1], [0]]
    assert column(b, ALIVE)[:2] == [[0], [1]]
    assert column(a, STATE)[:2] == column(b, STATE)[:2] == [[0], [1]]
    assert paid(a) == paid(b) == [1.0, 0.0]


def test_groups_see_only_themselves_and_other_agents_see_all() -> None:
    store = central_store("abc", groups=TEAM)
    store.step(0, "abc")
    store.end(1)
    assert steps_of(store, "a").observations[STATE].shape == (2, 4)
    assert column(steps_of(store, "c"), STATE)[0] == [ord("a"), 0, ord("b"), 0, ord("c"), 0]
    assert ALIVE not in steps_of(store, "c").observations


def test_a_truncated_team_ends_with_its_final_observations() -> None:
    store = central_store(groups=TEAM)
    store.step(0)
    finals = {agent: seen(agent, 9) for agent in "ab"}
    store.end(1, is_truncated=True, final_observations=finals)
    for agent in "ab":
        single = steps_of(store, agent)
        assert single.is_truncated
        assert column(single, STATE)[-1] == [ord("a"), 9, ord("b"), 9]
        assert column(single, ALIVE)[-1] == [1]


def test_a_member_that_terminates_as_its_team_is_truncated_has_departed() -> None:
    store = central_store(groups=TEAM)
    store.step(0)
    finals = {agent: seen(agent, 9) for agent in "ab"}
    store.end(1, is_truncated=True, terminations={"a": True}, final_observations=finals)
    a, b = steps_of(store, "a"), steps_of(store, "b")
    assert a.is_truncated
    assert b.is_truncated
    assert (column(a, ALIVE)[-1], column(b, ALIVE)[-1]) == ([0], [1])
    assert column(a, STATE)[-1] == [0, 0, 0, 0]
    assert column(b, STATE)[-1] == [0, 0, ord("b"), 9]


def test_a_terminated_agent_is_not_in_the_state_that_bootstraps_another() -> None:
    store = central_store()
    store.step(0)
    finals = {agent: seen(agent, 9) for agent in "ab"}
    store.end(1, is_truncated=True, terminations={"a": True}, final_observations=finals)
    a, b = steps_of(store, "a"), steps_of(store, "b")
    assert (a.is_terminated, b.is_truncated) == (True, True)
    assert column(b, STATE)[-1] == [0, 0, ord("b"), 9]


# --- masks ----------------------------------------------------------------------------------

MASKED = DictSpace({"observation": Box((2,)), "action_mask": MultiBinary(3)})


def masked(*mask: int) -> dict[str, Any]:
    return {"observation": seen("a", 0), "action_mask": np.array(mask, np.int8)}


@pytest.mark.parametrize("seating", [CENTRAL, MASKED_AGENTS])
def test_a_mask_is_recorded_apart(seating: Seating) -> None:
    store = ScriptedStore(make_plan({"a": MASKED}), seating=seating)
    store.start()
    store.step(0, observations={"a": masked(1, 0, 1)})
    store.end(1)
    first = each(steps_of(store, "a").observations)[0]
    assert first["action_mask"].tolist() == [1, 0, 1]
    assert first["action_mask"].dtype == np.float32
    assert first["obs"].tolist() == [ord("a"), 0]


def test_a_mask_without_available_actions_is_refused_by_agent() -> None:
    store = ScriptedStore(make_plan({"a": MASKED}), seating=MASKED_AGENTS)
    store.start()
    item = Step("e", 0, {"a": masked(0, 0, 0)})
    with pytest.raises(ValueMismatch, match=r"mask of agent 'a' forbids every action"):
        store.store.accept(item, 0.0)
    assert store.step(0, observations={"a": masked(1, 0, 0)}).actions == {"a": 0}


def test_networks_that_do_not_follow_masks_get_them_flattened() -> None:
    (seat,) = Seating().make_seats(make_plan({"a": MASKED})).values()
    assert leaf_type(seat.observation_space) == (np.float32, (5,))
