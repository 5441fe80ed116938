"""Where a team's state comes from, and which teams can share a policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muxrl.orchestrator.config import (
    ExperimentConfig,
    SimulationConfig,
    SimulationFacts,
    StopConfig,
    resolve,
)
from muxrl.orchestrator.config.facts import probe
from muxrl.orchestrator.errors import ConfigError
from muxrl.protocol.spaces import Box, DictSpace, Discrete, MultiBinary, Space
from muxrl.servers.config import ServerConfig, ServerPlan

ACTS = Discrete(3)


def told(state: int | None, observation: int = 4) -> Space:
    """An observation with a mask, and with a state of that length."""
    parts: dict[str, Space] = {"obs": Box((observation,)), "action_mask": MultiBinary(3)}
    return DictSpace(parts if state is None else {**parts, "state": Box((state,))})


def plan_of(spaces: dict[str, Space], state_size: int | None = None, **server: Any) -> ServerPlan:
    config = ExperimentConfig(
        name="x",
        simulation=SimulationConfig(env="module:env"),
        servers={"q": ServerConfig(algorithm="QMIX", agents=["*"], **server)},
        stop=StopConfig(env_steps=10),
    )
    facts = SimulationFacts({agent: (space, ACTS) for agent, space in spaces.items()}, state_size)
    return resolve(config, facts).servers["q"]


def problems_of(spaces: dict[str, Space], **more: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        plan_of(spaces, **more)
    return caught.value.problems


def test_a_state_that_cannot_be_read_matters_where_it_is_read() -> None:
    facts = SimulationFacts({"a": (told(None), ACTS)}, state_problem="state() returned a dict")
    config = ExperimentConfig(
        name="x",
        simulation=SimulationConfig(env="module:env"),
        servers={"q": ServerConfig(algorithm="DQN", agents=["*"])},
        stop=StopConfig(env_steps=10),
    )
    assert resolve(config, facts).servers["q"].state_size is None
    config.servers["q"].algorithm = "QMIX"
    with pytest.raises(
        ConfigError, match=r"^server 'q': QMIX reads the global state, and state\(\)"
    ):
        resolve(config, facts)
    config.servers["q"].use_global_state = False
    resolve(config, facts)


def test_members_that_observe_a_state_are_a_team() -> None:
    plan = plan_of({"a": told(7), "b": told(7, observation=2)}, groups={"t": ["*"]})
    assert plan.state_size is None
    assert plan.use_global_state
    assert {agent.policy_id for agent in plan.agents.values()} == {"default"}


def test_a_team_has_one_state() -> None:
    groups = {"t": ["*"]}
    (problem,) = problems_of({"a": told(7), "b": told(5)}, groups=groups)
    assert problem == (
        "server 'q': group 't': agent 'a' observes a state of 7 numbers, agent 'b' a state of 5 "
        "numbers; a team has one state, so give all members the same 'state', or set "
        "use_global_state: false"
    )
    (problem,) = problems_of({"a": told(7), "b": told(None)}, groups=groups)
    assert "agent 'b' no state" in problem
    # Where it is not used it need not fit.
    plan_of({"a": told(7), "b": told(5)}, groups=groups, use_global_state=False)
    plan_of({"a": told(7), "b": told(5)}, groups=groups, state_size=9)


def test_teams_with_other_states_cannot_share_a_policy() -> None:
    spaces = {"a": told(7), "b": told(5)}
    plan = plan_of(spaces)
    assert [agent.policy_id for agent in plan.agents.values()] == ["a", "b"]
    (problem,) = problems_of(spaces, policies={"p": ["*"]})
    assert "observations of 4, 3 actions, a state of 7 numbers" in problem
    assert "observations of 4, 3 actions, a state of 5 numbers" in problem
    assert len({a.policy_id for a in plan_of(spaces, use_global_state=False).agents.values()}) == 1


def test_late_members_reach_the_plan() -> None:
    assert plan_of({"a": told(None)}).late_members == "refuse"
    assert plan_of({"a": told(None)}, late_members="allow").late_members == "allow"


def test_a_team_that_begins_without_a_member_is_refused() -> None:
    """Before its first step would be, in a run that has begun."""
    server = ServerConfig(algorithm="QMIX", agents=["*"], groups={"t": ["a", "b"], "u": ["c"]})
    config = ExperimentConfig(
        name="x",
        simulation=SimulationConfig(env="module:env"),
        servers={"q": server},
        stop=StopConfig(env_steps=10),
    )
    facts = SimulationFacts({a: (told(None), ACTS) for a in "abc"}, first_agents=("a",))
    with pytest.raises(ConfigError) as caught:
        resolve(config, facts)
    assert caught.value.problems == [
        "server 'q': group 't' begins its episodes without b; where members take turns or join "
        "late, set late_members: allow"
    ]
    resolve(config, replace(facts, first_agents=("a", "b")))
    server.late_members = "allow"
    resolve(config, facts)
    server.algorithm, server.late_members = "MAPPO", "refuse"  # whose members are agents
    resolve(config, facts)


def test_a_look_says_who_begins() -> None:
    pytest.importorskip("pyspiel")
    facts = probe(SimulationConfig("open_spiel:kuhn_poker"))
    assert facts.first_agents == ("player_0",)
