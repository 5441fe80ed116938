"""Agents whose critic sees the state, and agents with action masks: what a config makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from muxrl.orchestrator.config import (
    ExperimentConfig,
    SimulationConfig,
    SimulationFacts,
    StopConfig,
    resolve,
)
from muxrl.orchestrator.errors import ConfigError
from muxrl.protocol.spaces import Box, DictSpace, Discrete, MultiBinary, MultiDiscrete, Space
from muxrl.servers.agents.masks import has_action_mask
from muxrl.servers.config import ServerConfig, ServerPlan
from muxrl.servers.lookup import find

SEES = Box((4,))
ACTS = Discrete(3)
ABC = dict.fromkeys("abc", SEES)


def plan_of(
    spaces: dict[str, Space] = ABC,
    state_size: int | None = None,
    acts: Space = ACTS,
    algorithm: str = "MAPPO",
    **server: Any,
) -> ServerPlan:
    config = ExperimentConfig(
        name="x",
        simulation=SimulationConfig(env="module:env"),
        servers={"s": ServerConfig(algorithm=algorithm, agents=["*"], **server)},
        stop=StopConfig(env_steps=10),
    )
    facts = SimulationFacts({agent: (space, acts) for agent, space in spaces.items()}, state_size)
    return resolve(config, facts).servers["s"]


def problems_of(*args: Any, **kwargs: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        plan_of(*args, **kwargs)
    return caught.value.problems


def policies(plan: ServerPlan) -> dict[str, str]:
    return {agent: a.policy_id for agent, a in plan.agents.items()}


# --- the state ------------------------------------------------------------------------------


def test_without_groups_agents_share_a_policy_and_ask_for_the_state() -> None:
    plan = plan_of(state_size=9)
    assert plan.state_size is not None
    assert plan.groups == {}
    assert policies(plan) == dict.fromkeys("abc", "default")
    assert plan_of(state_size=9, use_global_state=False).state_size is None
    assert plan_of(state_size=9, algorithm="PPO").state_size is None


def test_a_group_is_a_team_and_who_is_in_none_is_no_team() -> None:
    plan = plan_of(groups={"pair": ["a", "b"]})
    assert plan.groups == {"pair": ("a", "b")}
    assert [plan.agents[agent].group for agent in "abc"] == ["pair", "pair", None]


def test_a_policy_is_shared_where_the_view_of_the_critic_is_alike() -> None:
    pairs = {"one": ["a", "b"], "two": ["c", "d"]}
    spaces = dict.fromkeys("abcd", SEES)
    assert set(policies(plan_of(spaces, groups=pairs)).values()) == {"default"}
    unlike = {"one": ["a"], "rest": ["b", "c", "d"]}
    assert policies(plan_of(spaces, groups=unlike)) == {agent: agent for agent in "abcd"}
    (problem,) = problems_of(spaces, groups=unlike, policies={"p": ["*"]})
    assert "'p' cannot be shared by agent 'a'" in problem
    assert "1 in view, a state of 4" in problem
    assert "3 in view, a state of 12" in problem


def test_happos_agents_share_no_policy() -> None:
    assert policies(plan_of(algorithm="HAPPO")) == {agent: agent for agent in "abc"}
    assert policies(plan_of({"a": SEES}, algorithm="HAPPO")) == {"a": "default"}
    named = {"p": ["a"], "q": ["b"], "r": ["c"]}
    plan = plan_of(algorithm="HAPPO", policies=named, groups={"team": ["*"]})
    assert policies(plan) == {"a": "p", "b": "q", "c": "r"}
    (shared,) = problems_of(algorithm="happo", policies={"p": ["a"], "q": ["b", "c"]})
    assert "policy 'q' is shared by b, c, but HAPPO updates agents one after" in shared
    (unnamed,) = problems_of(dict.fromkeys(("a/1", "b"), SEES), algorithm="HAPPO")
    assert "its agents share no policy, so each has a policy of its own name" in unnamed
    (recurrent,) = problems_of(algorithm="HAPPO", model={"use_lstm": True})
    assert "HAPPO cannot have the model setting 'use_lstm'" in recurrent


def test_all_agents_observe_one_state_or_none() -> None:
    told = DictSpace({"obs": SEES, "state": Box((7,))})
    assert set(plan_of({"a": told, "b": told}).agents) == {"a", "b"}
    (problem,) = problems_of({"a": told, "b": SEES})
    assert "agent 'a' observes a state of 7 numbers, agent 'b' no state" in problem
    assert plan_of({"a": told, "b": SEES}, use_global_state=False).state_size is None


def test_images_and_shared_layers_are_refused_with_the_reason() -> None:
    (image,) = problems_of({"a": Box((4, 4, 3))})
    assert "MAPPO cannot read the observation space" in image
    assert "flatten the observation first" in image
    (shared,) = problems_of(model={"use_lstm": True, "vf_share_layers": True})
    assert "MAPPO cannot have the model setting 'vf_share_layers'" in shared
    assert "its actor and its critic do not see the same" in shared


def test_groups_are_refused_where_nobody_learns_jointly() -> None:
    (problem,) = problems_of(groups={"t": ["*"]}, algorithm="PPO")
    assert "PPO learns for each agent alone" in problem


# --- masks ----------------------------------------------------------------------------------

MASKED = DictSpace({"observation": SEES, "action_mask": MultiBinary(3)})


@pytest.mark.parametrize("algorithm", ["PPO", "A2C", "MAPPO", "HAPPO"])
def test_masks_are_followed(algorithm: str) -> None:
    plan = plan_of({"a": MASKED}, algorithm=algorithm)
    seat = find(algorithm).seating.make_seats(plan)["a"]
    assert has_action_mask(seat.observation_space)


@pytest.mark.parametrize(
    "acts", [Discrete(4), MultiDiscrete((3, 3)), Box((3,), low=-1.0, high=1.0)]
)
def test_a_mask_that_does_not_fit_the_actions_is_refused(acts: Space) -> None:
    (problem,) = problems_of({"a": MASKED}, acts=acts, algorithm="PPO")
    assert "agent 'a' observes the action mask" in problem
    assert "a mask has one number for each action" in problem
