"""A server's plan has its teams, policies and networks; settings that cannot be are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muxrl.orchestrator.config import SimulationConfig, SimulationFacts, load_config, probe
from muxrl.orchestrator.config.resolve import resolve
from muxrl.orchestrator.errors import ConfigError
from muxrl.protocol.spaces import Box, DictSpace, Discrete, MultiBinary, MultiDiscrete, Space
from muxrl.servers.checkpoints.checkpoint import ABOUT_FILE, note_of
from muxrl.servers.config import ServerPlan

SEES, ACTS = Box((4,)), Discrete(3)
ABC = dict.fromkeys("abc", SEES)
IMAGE = Box((84, 84, 4), "uint8", 0, 255)
BOUNDED = Box((4,), "float32", 0.0, 100.0)
# The bounds that Gymnasium gives to unbounded integers.
INTEGERS = Box((2,), "int32", -(2**31), 2**31 - 1)
DIALS = Box((2,), "float32", 2.0, 10.0)
MANY = MultiDiscrete((40, 40))
SHARED = (
    "MAPPO cannot have the model setting 'vf_share_layers'"
    ".*its actor and its critic read different inputs"
)
CLEARED = (
    r"DQN has no setting 'clip_param'; it is a setting of APPO, HAPPO, MAPPO, PPO; if it "
    r"comes from the base, clear its settings by servers.s.settings=\{\} on the command line, or "
    r"settings: \{\} in a file$"
)
OWN = "muxrl.experiments.examples.own_module:SharedTrunk"


def resolved(facts: SimulationFacts, algorithm: str, **server: Any) -> ServerPlan:
    servers = {"s": {"algorithm": algorithm, "agents": ["*"], **server}}
    given = {"simulation": {"env": "module:env"}, "servers": servers, "stop": {"env_steps": 10}}
    return resolve(load_config(given), facts).servers["s"]


def plan_of(
    algorithm: str,
    sees: Space | Mapping[str, Space] = ABC,
    acts: Space = ACTS,
    state_size: int | None = None,
    **server: Any,
) -> ServerPlan:
    spaces = sees if isinstance(sees, Mapping) else {"a": sees}
    facts = SimulationFacts({agent: (space, acts) for agent, space in spaces.items()}, state_size)
    return resolved(facts, algorithm, **server)


def problems_of(*args: Any, **kwargs: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        plan_of(*args, **kwargs)
    return caught.value.problems


def policies(plan: ServerPlan) -> dict[str, str]:
    return {agent: a.policy_id for agent, a in plan.agents.items()}


# --- networks, and what they read ------------------------------------------------------------


def test_a_module_of_ones_own_is_part_of_the_plan() -> None:
    plan = plan_of("RLLIB_PPO", rl_module=OWN, model={"width": 8})
    assert (plan.rl_module, plan.model) == (OWN, {"width": 8})
    assert plan_of("A2C").rl_module == ""


def test_integers_with_bounds_are_choices() -> None:
    for space in (INTEGERS, Box((2,), "int32")):
        given = plan_of("DQN", SEES, space, action_bounds=[0, 3]).agents["a"].action_space
        assert given == Box((2,), "int32", 0.0, 3.0) or given.low == [0.0, 0.0]


@pytest.mark.parametrize(
    ("algorithm", "sees", "given", "expected"),
    [
        ("PPO", IMAGE, {"scale_observations": "images"}, "images"),
        ("PPO", IMAGE, {"scale_observations": "bounded"}, "bounded"),
        ("PPO", IMAGE, {"scale_observations": "none"}, "none"),
        ("PPO", BOUNDED, {"scale_observations": "images"}, "none"),
        ("PPO", BOUNDED, {"scale_observations": "bounded"}, "bounded"),
        ("DQN", IMAGE, {}, "images"),
        ("RANDOM", IMAGE, {}, "none"),
    ],
)
def test_a_plan_names_which_observations_are_scaled(
    algorithm: str, sees: Box, given: dict[str, Any], expected: str
) -> None:
    assert plan_of(algorithm, sees, **given).scale_observations == expected


@pytest.mark.parametrize(
    ("algorithm", "given", "message"),
    [
        ("RANDOM", {"rl_module": OWN}, "RANDOM has no networks of its own; leave"),
        ("QMIX", {"rl_module": OWN}, "QMIX cannot take an RLModule of your own"),
        ("PPO", {"rl_module": OWN}, "PPO makes its networks itself; .*RLLIB_PPO$"),
        ("RLLIB_PPO", {"rl_module": "nowhere:X"}, "cannot be imported: ModuleNotF"),
        # Alternatives that learn from the same data for the same units come first; all are named.
        ("DQN", {"acts": DIALS}, r"cannot do the action space Box.* of agent 'a': it takes Disc"),
        ("DQN", {"acts": DIALS}, "use SAC, A2C, APPO, IMPALA, PPO, HAPPO, MAPPO, MADDPG, MASAC$"),
        ("DQN", {"acts": MANY}, r"DQN cannot do .*; use A2C, APPO, IMPALA, PPO, H"),
        ("SAC", {"acts": MANY}, r"SAC cannot do .* use A2C, APPO, IMPALA, PPO, HAPPO, MAPPO$"),
        ("MASAC", {"acts": MANY}, r"MASAC cannot do .*; use HAPPO, MAPPO, A2C, APPO"),
        ("MASAC", {}, "use IQL, MADDPG, QMIX, QPLEX, VDN, HAPPO, .*, PPO$"),
        ("MASAC", {"acts": MultiDiscrete((2, 3))}, r"\(\[2 3\]\), which is Discrete\(6\) to"),
        ("QMIX", {"acts": DIALS}, r"QMIX cannot do .*; use MADDPG, MASAC, HAPPO, MAPPO, SAC"),
        ("SAC", {"acts": Box((2,))}, "SAC cannot do .* it has no bounds"),
        ("DQN", {"acts": INTEGERS}, "integers with bounds are choices: give the Box"),
        (
            "QMIX",
            {"acts": INTEGERS},
            "1024; integers with bounds are choices: give the Box its own",
        ),
        ("DQN", {"settings": {"clip_param": 0.1}}, CLEARED),
        ("RANDOM", {"settings": {"lr": 0.1}}, "none; it is a setting of A2C, APPO, DQN"),
        ("FROZEN", {"settings": {"checkpoint": ["a", "b"]}}, "; POOL draws one of"),
        ("DQN", {"settings": {"dueling": "true"}}, "leave out the quotes: true"),
        ("CQL", {}, "algorithm 'CQL' learns from recorded data only"),
        ("DQN", {"model": {"use_lstm": True}}, "'use_lstm': its replay draws"),
        ("HAPPO", {"model": {"use_lstm": True}}, "HAPPO cannot have the model setting 'use_lstm'"),
        ("MAPPO", {"model": {"vf_share_layers": True}}, SHARED),
        ("MAPPO", {"sees": Box((4, 4, 3))}, "MAPPO cannot read .*; flatten the observation first"),
        ("PPO", {"scale_observations": "bounded"}, "no observation of its agents has bo"),
        ("RANDOM", {"sees": IMAGE, "scale_observations": "bounded"}, "not learn: FROZEN reads"),
        ("DQN", {"normalize_rewards": True}, "DQN also learns from older rewards"),
        ("IMPALA", {"normalize_rewards": True}, "use one of A2C, HAPPO, MAPPO, PPO"),
        ("PPO", {"sees": ACTS, "normalize_observations": True}, r"no numbers \(Discrete\(3\)\)"),
        ("RANDOM", {"normalize_observations": True}, "leave out normalize_observations"),
        ("RANDOM", {"frame_stack": 2}, "RANDOM has no networks that frames could be"),
        ("PPO", {"frame_stack": 0}, "has frame_stack: 0, but a network reads at least"),
    ],
)
def test_spaces_and_settings_that_an_algorithm_cannot_do_are_refused(
    algorithm: str, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        plan_of(algorithm, **{"sees": SEES} | given)
    assert str(caught.value).count("server 's'") == 1


# --- critics that see the state --------------------------------------------------------------


def test_without_groups_agents_share_a_policy_and_ask_for_the_state() -> None:
    plan = plan_of("MAPPO", state_size=9)
    assert plan.state_size is not None
    assert plan.groups == {}
    assert policies(plan) == dict.fromkeys("abc", "default")
    assert plan_of("MAPPO", state_size=9, use_global_state=False).state_size is None
    assert plan_of("PPO", state_size=9).state_size is None


def test_a_group_is_a_team_and_agents_without_one_are_no_team() -> None:
    plan = plan_of("MAPPO", groups={"pair": ["a", "b"]})
    assert plan.groups == {"pair": ("a", "b")}
    assert [plan.agents[agent].group for agent in "abc"] == ["pair", "pair", None]


def test_a_policy_is_shared_if_its_critics_see_the_same() -> None:
    pairs = {"one": ["a", "b"], "two": ["c", "d"]}
    spaces = dict.fromkeys("abcd", SEES)
    assert set(policies(plan_of("MAPPO", spaces, groups=pairs)).values()) == {"default"}
    unlike = {"one": ["a"], "rest": ["b", "c", "d"]}
    assert policies(plan_of("MAPPO", spaces, groups=unlike)) == {agent: agent for agent in "abcd"}
    (problem,) = problems_of("MAPPO", spaces, groups=unlike, policies={"p": ["*"]})
    assert "'p' cannot be shared by agent 'a'" in problem
    assert "1 in view, a state of 4" in problem
    assert "3 in view, a state of 12" in problem


def test_happos_agents_share_no_policy() -> None:
    assert policies(plan_of("HAPPO")) == {agent: agent for agent in "abc"}
    assert policies(plan_of("HAPPO", SEES)) == {"a": "default"}
    named = {"p": ["a"], "q": ["b"], "r": ["c"]}
    plan = plan_of("HAPPO", policies=named, groups={"team": ["*"]})
    assert policies(plan) == {"a": "p", "b": "q", "c": "r"}
    (shared,) = problems_of("happo", policies={"p": ["a"], "q": ["b", "c"]})
    assert "policy 'q' is shared by b, c, but HAPPO updates agents one after" in shared
    (unnamed,) = problems_of("HAPPO", dict.fromkeys(("a/1", "b"), SEES))
    assert "its agents share no policy, so each has a policy of its own name" in unnamed


def test_all_agents_observe_one_state_or_none() -> None:
    told = DictSpace({"obs": SEES, "state": Box((7,))})
    assert set(plan_of("MAPPO", {"a": told, "b": told}).agents) == {"a", "b"}
    (problem,) = problems_of("MAPPO", {"a": told, "b": SEES})
    assert "agent 'a' observes a state of 7 numbers, agent 'b' no state" in problem
    assert plan_of("MAPPO", {"a": told, "b": SEES}, use_global_state=False).state_size is None


# --- masks -----------------------------------------------------------------------------------

MASKED = DictSpace({"observation": SEES, "action_mask": MultiBinary(3)})


@pytest.mark.parametrize(
    "acts", [Discrete(4), MultiDiscrete((3, 3)), Box((3,), low=-1.0, high=1.0)]
)
def test_a_mask_that_does_not_fit_the_actions_is_refused(acts: Space) -> None:
    (problem,) = problems_of("PPO", MASKED, acts)
    assert "agent 'a' observes the action mask" in problem
    assert "a mask has one number for each action" in problem


# --- the states of teams ---------------------------------------------------------------------


def told(state: int | None, observation: int = 4) -> Space:
    """Returns an observation space with a mask, and with a state of that length."""
    parts: dict[str, Space] = {"obs": Box((observation,)), "action_mask": MultiBinary(3)}
    return DictSpace(parts if state is None else {**parts, "state": Box((state,))})


def test_a_state_that_cannot_be_read_is_refused_if_it_is_used() -> None:
    facts = SimulationFacts({"a": (told(None), ACTS)}, state_problem="state() returned a dict")
    assert resolved(facts, "DQN").state_size is None
    reads = r"^server 's': QMIX reads the global state, but state\(\)"
    with pytest.raises(ConfigError, match=reads):
        resolved(facts, "QMIX")
    resolved(facts, "QMIX", use_global_state=False)


def test_members_that_observe_a_state_are_a_team() -> None:
    plan = plan_of("QMIX", {"a": told(7), "b": told(7, observation=2)}, groups={"t": ["*"]})
    assert plan.state_size is None
    assert plan.use_global_state
    assert {*policies(plan).values()} == {"default"}


def test_a_team_has_one_state() -> None:
    groups = {"t": ["*"]}
    (problem,) = problems_of("QMIX", {"a": told(7), "b": told(5)}, groups=groups)
    assert problem == (
        "server 's': group 't': agent 'a' observes a state of 7 numbers, agent 'b' a state of 5 "
        "numbers; a team has one state, so give all members the same 'state', or set "
        "use_global_state: false"
    )
    (problem,) = problems_of("QMIX", {"a": told(7), "b": told(None)}, groups=groups)
    assert "agent 'b' no state" in problem
    # A state that is not used need not fit.
    plan_of("QMIX", {"a": told(7), "b": told(5)}, groups=groups, use_global_state=False)
    plan_of("QMIX", {"a": told(7), "b": told(5)}, groups=groups, state_size=9)


def test_teams_with_other_states_cannot_share_a_policy() -> None:
    spaces = {"a": told(7), "b": told(5)}
    assert policies(plan_of("QMIX", spaces)) == {"a": "a", "b": "b"}
    (problem,) = problems_of("QMIX", spaces, policies={"p": ["*"]})
    assert "observations of 4, 3 actions, a state of 7 numbers" in problem
    assert "observations of 4, 3 actions, a state of 5 numbers" in problem
    assert {*policies(plan_of("QMIX", spaces, use_global_state=False)).values()} == {"default"}


def test_a_team_that_begins_without_a_member_is_refused() -> None:
    """Otherwise it would be refused at its first step, when the run has begun."""
    groups = {"t": ["a", "b"], "u": ["c"]}
    facts = SimulationFacts({a: (told(None), ACTS) for a in "abc"}, first_agents=("a",))
    with pytest.raises(ConfigError) as caught:
        resolved(facts, "QMIX", groups=groups)
    assert caught.value.problems == [
        "server 's': group 't' begins its episodes without b; if its members take turns or join "
        "late, set late_members: allow"
    ]
    resolved(replace(facts, first_agents=("a", "b")), "QMIX", groups=groups)
    resolved(facts, "QMIX", groups=groups, late_members="allow")
    resolved(facts, "MAPPO", groups=groups)  # members of its groups are single agents


def test_the_first_agents_are_known_from_trying_the_simulation() -> None:
    pytest.importorskip("pyspiel")
    facts = probe(SimulationConfig("open_spiel:kuhn_poker"))
    assert facts.first_agents == ("player_0",)


# --- a policy of a team of three for one of six, if it reads nothing of the team -------------

ALL = {"all": ["car_*"]}


def cars(num: int) -> dict[str, Space]:
    return {f"car_{i}": Box((3,)) for i in range(num)}


def saved(folder: Path, algorithm: str, **server: Any) -> str:
    note = {"format": 1, **note_of(plan_of(algorithm, cars(3), **server)), "env_steps": 400}
    (folder / ABOUT_FILE).write_text(json.dumps(note))
    return str(folder)


@pytest.mark.parametrize("settings", [{}, {"agent_specific_state": False}])
def test_frozen_acts_for_more_agents_if_its_actor_reads_nothing_of_the_team(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    for groups in ({}, ALL):
        path = saved(tmp_path, "MAPPO", settings=settings, groups=groups)
        assert len(plan_of("FROZEN", cars(6), settings={"checkpoint": path}).agents) == 6


@pytest.mark.parametrize(
    ("algorithm", "settings"), [("MAPPO", {"obs_agent_id": True}), ("QMIX", {})]
)
def test_frozen_is_refused_for_more_agents_if_its_actor_reads_the_team(
    algorithm: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    path = saved(tmp_path, algorithm, settings=settings, groups=ALL)
    with pytest.raises(ConfigError, match="policy 'default' of checkpoint"):
        plan_of("FROZEN", cars(6), settings={"checkpoint": path}, groups=ALL)
