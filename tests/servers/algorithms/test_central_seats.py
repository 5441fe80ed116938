"""What is recorded of agents whose critic sees the state, in groups and alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.servers.scripted_store import ScriptedStore, each, make_plan, seen

from muxrl.protocol.errors import ValueMismatch
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


# --- groups ---------------------------------------------------------------------------------


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
    assert column(b, AGENT_ID)[:2] == [[0, 1]] * 2
    assert paid(a) == paid(b) == [1.0, 0.0]


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


def test_networks_that_do_not_follow_masks_get_them_flattened() -> None:
    (seat,) = Seating().make_seats(make_plan({"a": MASKED})).values()
    assert leaf_type(seat.observation_space) == (np.float32, (5,))
