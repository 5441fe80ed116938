from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from muxrl.protocol.spaces import Box, Discrete, MultiDiscrete
from muxrl.servers.agents.teams import TeamProblem, TeamSpec, team_reward
from muxrl.servers.gymnasium_spaces import to_gymnasium

A, B = np.array([0.1, 0.2, 0.3], np.float32), np.array([0.4, 0.5], np.float32)


def test_members_are_padded_to_the_largest(team_of_two: TeamSpec) -> None:
    assert (team_of_two.obs_dim, team_of_two.num_actions, team_of_two.state_dim) == (3, 4, 6)
    seen = team_of_two.observe({"a": A, "b": B}, last_actions={"b": 3})
    np.testing.assert_array_equal(seen["obs"], np.array([A, [0.4, 0.5, 0.0]], np.float32))
    np.testing.assert_array_equal(seen["state"], seen["obs"].reshape(-1))
    np.testing.assert_array_equal(seen["action_mask"], [[1, 1, 0, 0], [1, 1, 1, 1]])
    np.testing.assert_array_equal(seen["alive"], [1, 1])
    np.testing.assert_array_equal(seen["last_action"], [-1, 3])
    assert to_gymnasium(team_of_two.observation_space).contains(seen)
    assert team_of_two.action_space == MultiDiscrete((4, 4))


def test_an_absent_member_is_a_zero_row_with_action_zero_only(team_of_two: TeamSpec) -> None:
    seen = team_of_two.observe({"b": B, "stranger": B}, last_actions={"a": 1, "b": 2})
    np.testing.assert_array_equal(seen["obs"][0], 0)
    np.testing.assert_array_equal(seen["action_mask"][0], [1, 0, 0, 0])
    np.testing.assert_array_equal(seen["alive"], [0, 1])
    np.testing.assert_array_equal(seen["last_action"], [-1, 2])
    assert to_gymnasium(team_of_two.observation_space).contains(seen)
    assert to_gymnasium(team_of_two.observation_space).contains(team_of_two.observe({}))


def test_masks_are_padded_and_without_one_all_actions_are_available(team_of_two: TeamSpec) -> None:
    seen = team_of_two.observe({"a": A, "b": B}, {"b": [0, 1, 0, 1]})
    np.testing.assert_array_equal(seen["action_mask"], [[1, 1, 0, 0], [0, 1, 0, 1]])


def test_observations_share_no_memory(team_of_two: TeamSpec) -> None:
    first = team_of_two.observe({"a": A, "b": B})
    second = team_of_two.observe({"a": A, "b": B})
    for value in first.values():
        value.fill(7)
    assert not any((value == 7).any() for value in second.values())
    np.testing.assert_array_equal(team_of_two.observe({})["action_mask"], [[1, 0, 0, 0]] * 2)


def test_a_state_of_its_own() -> None:
    box, act = Box((1,)), Discrete(2)
    spec = TeamSpec(("a",), {"a": box}, {"a": act}, state_size=2)
    seen = spec.observe({"a": [0.5]}, state=[1, 2])
    np.testing.assert_array_equal(seen["state"], np.array([1, 2], np.float32))
    with pytest.raises(TeamProblem, match="needs a state of 2 numbers"):
        spec.observe({"a": [0.5]})
    with pytest.raises(TeamProblem, match=r"the state has the shape \[3\], state_size is 2"):
        spec.observe({"a": [0.5]}, state=[1, 2, 3])


def test_observations_side_by_side_may_mark_departed_members(team_of_two: TeamSpec) -> None:
    spec = replace(team_of_two, marks_departed=True)
    np.testing.assert_array_equal(
        spec.observe({"b": B}, departed={"a", "stranger"})["state"],
        [*spec.observe({"b": B})["obs"].ravel(), 1, 0],
    )
    everybody = spec.observe({"a": A, "b": B})
    np.testing.assert_array_equal(everybody["state"][-2:], [0, 0])
    assert to_gymnasium(spec.observation_space).contains(everybody)


def test_split_returns_the_actions_of_acting_members(team_of_two: TeamSpec) -> None:
    split = team_of_two.split(np.array([1, 3]), ["b"])
    assert split == {"b": 3}
    assert type(split["b"]) is int
    with pytest.raises(TeamProblem, match="3 actions came for the 2 members"):
        team_of_two.split([0, 0, 0], ["a"])


@pytest.mark.parametrize(
    ("observations", "masks", "message"),
    [
        ({"a": B}, None, r"'a' observed the shape \[2\], its space says \[3\]"),
        ({"a": np.float32(1)}, None, r"'a' observed the shape \[\]"),
        ({"a": A}, {"a": [1]}, r"mask of agent 'a' has the shape \[1\], it has 2 actions"),
        ({"a": A}, {"a": [0, 0]}, "mask of agent 'a' forbids every action"),
    ],
)
def test_data_that_do_not_fit_are_refused(
    team_of_two: TeamSpec, observations: Any, masks: Any, message: str
) -> None:
    with pytest.raises(TeamProblem, match=message):
        team_of_two.observe(observations, masks)


def test_spaces_that_cannot_form_a_team() -> None:
    box, act = Box((2,)), Discrete(2)
    with pytest.raises(
        TeamProblem, match=r"action space Box.* of agent 'a'.*one value per discrete action"
    ):
        TeamSpec(("a",), {"a": box}, {"a": box})
    with pytest.raises(TeamProblem, match=r"observation space .* one-dimensional Box"):
        TeamSpec(("a",), {"a": act}, {"a": act})
    with pytest.raises(TeamProblem, match="'b' of the team has no observation space"):
        TeamSpec(("a", "b"), {"a": box}, {"a": act})
    with pytest.raises(TeamProblem, match="names a member twice"):
        TeamSpec(("a", "a"), {"a": box}, {"a": act})


def test_team_reward() -> None:
    assert team_reward({"a": 3.0, "b": 1.5}, "sum", 3) == 4.5
    assert team_reward({"a": 3.0, "b": 1.5}, "mean", 3) == 1.5
    assert team_reward({}, "sum", 3) == 0.0
    with pytest.raises(TeamProblem):
        team_reward({}, "max", 3)  # type: ignore[arg-type]
