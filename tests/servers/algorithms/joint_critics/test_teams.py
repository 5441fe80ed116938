"""Teams with continuous actions: their spaces, their seats, and what is recorded of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.servers.scripted_store import make_plan
from tests.servers.untrained import read_logged

from muxrl.protocol.errors import ValueMismatch
from muxrl.protocol.spaces import (
    Box,
    DictSpace,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    bounds,
)
from muxrl.servers.agents.action_forms import action_form
from muxrl.servers.agents.seat_actions import TeamProblem
from muxrl.servers.agents.seats import Seat
from muxrl.servers.algorithms.joint_critics.teams import VECTOR_TEAMS, TeamVectors
from muxrl.servers.alone import Alone
from muxrl.servers.config import AgentPlan, ServerPlan
from muxrl.servers.gymnasium_spaces import to_gymnasium
from muxrl.servers.lookup import find
from muxrl.servers.setting_values import AlgorithmProblem

SEES = Box((2,), "float32", -1.0, 1.0)
BOUNDS = {"a": (-1.0, 3.0, 2), "b": (0.0, 0.5, 1), "c": (-4.0, -2.0, 3)}


def plan_of(**fields: Any) -> ServerPlan:
    plan = make_plan("abc", {"team": ("a", "b", "c")})
    agents = {
        m: replace(plan.agents[m], action_space=Box((dim,), "float32", low, high))
        for m, (low, high, dim) in BOUNDS.items()
    }
    return replace(plan, algorithm="MASAC", agents=agents, **fields)


def seat() -> Seat:
    return VECTOR_TEAMS.make_seats(plan_of())["team"]


ACTS = seat().action_space


# --- spaces ---------------------------------------------------------------------------------


def test_the_action_space_says_which_dimensions_members_lack() -> None:
    assert ACTS.shape == (3, 3)
    low, high = bounds(ACTS)
    np.testing.assert_array_equal(high, [[1, 1, 0], [1, 0, 0], [1, 1, 1]])
    np.testing.assert_array_equal(low, -high)


def alone() -> Alone:
    plan = plan_of(late_members="allow")
    return Alone(plan.agents, VECTOR_TEAMS.make_seats(plan))


def test_observations_have_no_masks_and_no_last_actions() -> None:
    value = np.array([0.25, 0.5], np.float32)
    (seen,) = alone().look({"a": value, "c": -value}).block.observations
    assert seen.keys() == {"obs", "state", "alive"}
    np.testing.assert_array_equal(seen["obs"], [[[value, [0, 0], -value]]])
    np.testing.assert_array_equal(seen["state"][..., :6], seen["obs"].reshape(1, 1, 6))
    np.testing.assert_array_equal(seen["alive"], [[[1, 0, 1]]])


def acted_on(who: Any, action: Any, acting: Collection[str] = "abc") -> dict[str, Any]:
    """Returns what the acting members do by a team's action."""
    rows = np.asarray(action)[None, None]
    forms = {m.agent_id: (row, m.form) for row, m in enumerate(who.agents)}
    own = {m: (rows[:, :, row], form) for m, (row, form) in forms.items() if m in acting}
    return {m: who.actions.write(form, acted)[0, 0] for m, (acted, form) in own.items()}


unit = st.floats(-1.0, 1.0, width=32)


@given(st.lists(unit, min_size=9, max_size=9), st.sets(st.sampled_from("abc"), min_size=1))
def test_logged_actions_are_read_as_they_were_written(flat: list[float], acting: set[str]) -> None:
    who, plan = seat(), plan_of()
    action = np.array(flat, np.float32).reshape(3, 3) * who.actions.masks
    acted = acted_on(who, action, acting)
    assert all(to_gymnasium(plan.agents[m].action_space).contains(a) for m, a in acted.items())
    read = read_logged(who, acted)
    assert read.is_given.tolist() == [[[member in acting for member in who.members]]]
    given = read.is_given[0, 0]
    np.testing.assert_allclose(read.actions[0, 0][given], action[given], atol=1e-6)


def test_actions_are_scaled_to_each_members_bounds() -> None:
    acted = acted_on(seat(), np.ones((3, 3), np.float32))
    assert {m: a.tolist() for m, a in acted.items()} == {"a": [3, 3], "b": [0.5], "c": [-2, -2, -2]}


@pytest.mark.parametrize(
    ("space", "kind"), [(MultiDiscrete((3, 2)), "MultiDiscrete"), (Box((2,)), "Box")]
)
def test_other_actions_are_refused(space: Space, kind: str) -> None:
    with pytest.raises(TeamProblem, match=rf"{kind}.* of agent 'a'.* one-dimensional Box"):
        TeamVectors({"a": action_form(space)})
    with pytest.raises(AlgorithmProblem, match=rf"MASAC cannot do the action space {kind}"):
        find("MASAC").check_agent("a", AgentPlan("x", SEES, space))


def test_the_refusal_of_discrete_actions_names_who_takes_them() -> None:
    with pytest.raises(AlgorithmProblem) as caught:
        find("MASAC").check_agent("a", AgentPlan("x", SEES, Discrete(3)))
    assert str(caught.value) == (
        "policy 'x': MASAC cannot do the action space Discrete(3) of agent 'a': it takes a Box of "
        "one dimension"
    )
    find("MASAC").check_agent("a", AgentPlan("x", SEES, Box((5,), "float32", 0.0, 1.0)))


MASKED = DictSpace({"observation": Box((2,)), "action_mask": MultiBinary(3)})


def test_an_action_mask_of_real_numbers_is_refused() -> None:
    plan = plan_of()
    plan.agents["a"] = replace(plan.agents["a"], observation_space=MASKED)
    (problem,) = find("MASAC").find_problems(plan)
    assert "agent 'a' observes the action mask MultiBinary(3), but acts Box(2,)" in problem


def masked_plan() -> ServerPlan:
    """Returns the plan of a team in which `a` observes a mask and `b` does not."""
    plan = make_plan({"a": MASKED, "b": Box((2,))}, {"team": ("a", "b")})
    agents = {**plan.agents, "b": replace(plan.agents["b"], action_space=Discrete(2))}
    return replace(plan, algorithm="MADDPG", agents=agents, late_members="allow")


def test_masks_are_rows_of_what_a_team_observes() -> None:
    assert not list(find("MADDPG").find_problems(masked_plan()))
    plan, value = masked_plan(), np.zeros(2, np.float32)
    played = Alone(plan.agents, VECTOR_TEAMS.make_seats(plan))

    def masks(**observations: Any) -> list[list[float]]:
        (read,) = played.look(observations).block.observations
        found: list[list[float]] = read["action_mask"][0, 0].tolist()
        return found

    allowed = {"observation": value, "action_mask": np.array([0, 1, 0], np.int8)}
    assert masks(a=allowed, b=value) == [[0, 1, 0], [1, 1, 0]]
    assert masks(b=value) == [[1, 1, 1], [1, 1, 0]]
    forbidden = {**allowed, "action_mask": np.zeros(3, np.int8)}
    with pytest.raises(ValueMismatch, match="mask of agent 'a' forbids every action"):
        masks(a=forbidden, b=value)


def test_a_team_with_masks_is_not_like_one_without() -> None:
    plan = masked_plan()
    plain = replace(plan, agents={**plan.agents, "a": make_plan("a").agents["a"]})
    one, other = (VECTOR_TEAMS.signature("team", p) for p in (plan, plain))
    assert one.key != other.key
    assert one.text == f"{other.text}, with action masks"
    seats = VECTOR_TEAMS.make_seats(plain)
    assert "action_mask" not in seats["team"].observation_space.spaces  # type: ignore[attr-defined]


def test_rows_of_discrete_actions_are_one_hot() -> None:
    acts = {"a": Box((2,), "float32", 0.0, 4.0), "b": Discrete(3)}
    low, high = bounds(TeamVectors({m: action_form(acts[m]) for m in "ab"}).space)
    np.testing.assert_array_equal(low, [[-1, -1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(high, [[1, 1, 0], [1, 1, 1]])
    plan = make_plan("ab", {"team": ("a", "b")})
    agents = {m: replace(agent, action_space=acts[m]) for m, agent in plan.agents.items()}
    who = VECTOR_TEAMS.make_seats(replace(plan, agents=agents))["team"]
    joined = read_logged(who, {"a": np.array([4.0, 2.0]), "b": 2}).actions[0, 0]
    np.testing.assert_array_equal(joined, [[1, 0, 0], [0, 0, 1]])
    acted = acted_on(who, joined, "ab")
    assert (acted["a"].tolist(), acted["b"]) == ([4.0, 2.0], 2)


# --- seats ----------------------------------------------------------------------------------


def test_teams_are_alike_if_their_rows_have_the_same_dimensions() -> None:
    agents = {}
    for agent, dim in zip("abcdef", (2, 1, 2, 1, 1, 2), strict=True):
        plan = make_plan("a").agents["a"]
        agents[agent] = replace(plan, action_space=Box((dim,), "float32", -1.0, 1.0))
    groups = {"one": ("a", "b"), "two": ("c", "d"), "turned": ("e", "f")}
    plan = replace(make_plan(), agents=agents, groups=groups)
    one, two, turned = (VECTOR_TEAMS.signature(g, plan) for g in groups)
    assert one == two
    # Padded to the same sizes, but the rows lack their dimensions in another order.
    assert one.key != turned.key
    assert one.text == "2 members, observations of 2, actions of 2"
