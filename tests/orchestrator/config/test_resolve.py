"""A config resolves to plans with agents, groups, policies and seeds, or is refused."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muxrl.orchestrator.config import SimulationFacts, derive_seed, load_config, prepare
from muxrl.orchestrator.config.resolve import resolve
from muxrl.orchestrator.errors import ConfigError
from muxrl.protocol.spaces import Box, DictSpace, Discrete, MultiBinary

PREDATOR = (Box((20,)), Discrete(5))
PREY = (Box((18,)), Discrete(5))
DRIVER = (Box((18,)), Box((2,), low=-1.0, high=1.0))

TAG = SimulationFacts(
    {**{f"adversary_{i}": PREDATOR for i in range(3)}, "agent_0": PREY, "agent_1": PREY}, 96
)


def config_of(servers, *, simulation=None, **more):
    given = {"simulation": {"env": "module:env", **(simulation or {})}, "servers": servers}
    return load_config(given | {"stop": {"env_steps": 10}} | more)


def resolved(servers, facts=TAG, **more):
    return resolve(config_of(servers, **more), facts)


def problems_of(servers, facts=TAG, **more):
    with pytest.raises(ConfigError) as caught:
        resolved(servers, facts, **more)
    return caught.value.problems


def qmix(**config):
    """Returns a QMIX server for the predators, and a PPO server for the prey."""
    return {
        "qmix": {"algorithm": "QMIX", "agents": ["adversary_*"], **config},
        "ppo": {"agents": ["agent_*"]},
    }


def ppo(**config):
    return {"ppo": {"agents": ["*"], **config}}


# --- plans ------------------------------------------------------------------------------


def test_plans_of_two_servers():
    experiment = resolved(qmix(groups={"predators": ["adversary_*"]}, team_reward="mean"))
    plan = experiment.servers["qmix"]
    assert plan.groups == {"predators": ("adversary_0", "adversary_1", "adversary_2")}
    assert plan.agents["adversary_1"].group == "predators"
    assert plan.agents["adversary_1"].observation_space == PREDATOR[0]
    assert plan.state_size == 96
    assert plan.while_learning == "serve"
    assert experiment.servers["ppo"].while_learning == "wait"
    assert list(experiment.servers["ppo"].agents) == ["agent_0", "agent_1"]
    assert experiment.assignment == ("qmix:adversary_0,adversary_1,adversary_2|ppo:agent_0,agent_1")


def test_fixed_servers_have_no_state_no_gate_and_their_settings_complete():
    its = {"algorithm": "random", "agents": ["adversary_*"]}
    experiment = resolved({"it": its, "ppo": {"agents": ["agent_*"]}})
    plan = experiment.servers["it"]
    assert (plan.algorithm, plan.groups, plan.state_size) == ("RANDOM", {}, None)
    assert plan.while_learning == "serve"
    assert experiment.fixed_servers == {"it"}


def test_groups_networks_and_settings_are_refused_for_a_random_server():
    for fields, reason in (
        ({"groups": {"pack": ["adversary_*"]}}, "but RANDOM acts for each agent alone"),
        ({"while_learning": "wait"}, "RANDOM does not learn, so simulations never wait"),
        ({"model": {"fcnet_hiddens": [8]}}, "RANDOM does not learn and makes no network"),
        ({"settings": {"lr": 0.1}}, "RANDOM has no setting 'lr'; it has none"),
    ):
        its = {"algorithm": "RANDOM", "agents": ["adversary_*"], **fields}
        (problem,) = problems_of({"it": its, "ppo": {"agents": ["agent_*"]}})
        assert problem.startswith("server 'it': ")
        assert reason in problem


def test_a_stop_by_iterations_is_refused_if_no_server_learns():
    nobody = {"it": {"algorithm": "RANDOM", "agents": ["*"]}}
    assert problems_of(nobody, stop={"iterations": 3}) == [
        "stop.iterations: is given, but no server learns, so there are no iterations; leave it out"
    ]


def test_two_servers_of_one_algorithm_are_labelled_by_id():
    servers = {"left": {"agents": ["adversary_*"]}, "right": {"agents": ["agent_*"]}}
    assert resolved(servers).assignment == (
        "ppo@left:adversary_0,adversary_1,adversary_2|ppo@right:agent_0,agent_1"
    )


def test_members_keep_the_order_in_which_they_are_written():
    plan = resolved(qmix(groups={"g": ["adversary_2", "adversary_*"]})).servers["qmix"]
    assert plan.groups["g"] == ("adversary_2", "adversary_0", "adversary_1")


def test_agents_in_no_group_are_teams_of_one():
    plan = resolved(qmix(groups={"pair": ["adversary_0", "adversary_2"]})).servers["qmix"]
    assert plan.groups == {"pair": ("adversary_0", "adversary_2"), "adversary_1": ("adversary_1",)}
    assert plan.agents["adversary_1"].group == "adversary_1"


def test_seeds_differ_by_server_and_stay_when_servers_move():
    both = resolved(qmix(groups={"g": ["*"]}), seed=7)
    assert both.servers["qmix"].seed != both.servers["ppo"].seed
    assert resolved(dict(reversed(qmix().items())), seed=7).servers["ppo"].seed == (
        both.servers["ppo"].seed
    )
    assert resolved(qmix(), seed=8).servers["ppo"].seed != both.servers["ppo"].seed


def test_derived_seeds_are_fixed_numbers():
    assert derive_seed(0, "server", "qmix") == 898630327
    assert derive_seed(0, "server", "ppo") == 430204336
    assert derive_seed(0, "ab", "c") != derive_seed(0, "a", "bc")


# --- policies ---------------------------------------------------------------------------


def policies_of(experiment, server_id):
    return {a: plan.policy_id for a, plan in experiment.servers[server_id].agents.items()}


def test_agents_of_equal_spaces_share_the_default_policy():
    bounded = (Box((18,), low=-1.0, high=1.0), Discrete(5))
    facts = SimulationFacts({"a": PREY, "b": bounded})
    assert policies_of(resolved(ppo(), facts), "ppo") == {"a": "default", "b": "default"}


def test_agents_of_different_spaces_have_separate_policies():
    facts = SimulationFacts({"a": PREY, "b": PREDATOR})
    assert policies_of(resolved(ppo(), facts), "ppo") == {"a": "a", "b": "b"}


def test_teams_of_equal_spaces_share_the_default_policy():
    facts = SimulationFacts(dict.fromkeys("abcd", PREY))
    config = {"algorithm": "VDN", "agents": ["*"]}
    alike = resolved({"s": {**config, "groups": {"x": ["a", "b"], "y": ["c", "d"]}}}, facts)
    assert set(policies_of(alike, "s").values()) == {"default"}
    unlike = resolved({"s": {**config, "groups": {"x": ["a", "b", "c"]}}}, facts)
    assert policies_of(unlike, "s") == {"a": "x", "b": "x", "c": "x", "d": "d"}


def test_teams_are_compared_as_padded_and_without_masks():
    masked = (DictSpace({"observation": Box((18,)), "action_mask": MultiBinary(5)}), Discrete(5))
    facts = SimulationFacts({"a": PREY, "b": (Box((2,)), Discrete(3)), "c": masked, "d": PREY})
    groups = {"x": ["a", "b"], "y": ["c", "d"]}
    experiment = resolved({"s": {"algorithm": "QMIX", "agents": ["*"], "groups": groups}}, facts)
    assert set(policies_of(experiment, "s").values()) == {"default"}


def test_policies_of_teams_name_groups():
    policies = {"p": ["g"], "q": ["adv*_2"]}
    experiment = resolved(qmix(groups={"g": ["adversary_[01]"]}, policies=policies))
    expected = {"adversary_0": "p", "adversary_1": "p", "adversary_2": "q"}
    assert policies_of(experiment, "qmix") == expected


# --- refusals ---------------------------------------------------------------------------

OTHERS = "(the simulation has adversary_0, adversary_1, adversary_2, agent_0, agent_1)"
NO_FILE = "cannot name a file; use letters, digits, '_', '-' and '.'"

# By an override of the servers of `qmix` or `ppo`: the expected problem.
REFUSED = {
    "ppo.agents=[adversry_*, '*']": "the pattern 'adversry_*' matches no agent; did you mean "
    f"'adversary_*'? {OTHERS}",
    "ppo.agents=[agnt_0, '*']": "the name 'agnt_0' matches no agent; did you mean 'agent_0'? "
    f"{OTHERS}",
    "ppo.agents=[zzz, '*']": f"the name 'zzz' matches no agent {OTHERS}",
    "ppo.groups={g: [agent_0]}": "has groups (g), but PPO learns for each agent alone; leave out "
    "the groups, let agents share a policy with 'policies', or use a team algorithm such as QMIX",
    "qmix.groups={g: ['adversary_*', agent_0]}": "group 'g' names 'agent_0', but agent 'agent_0' "
    "is served by 'ppo'; a group's members are agents of its own server",
    "qmix.groups={g: ['adversary_*', adversary_9]}": "group 'g' names 'adversary_9', which matches "
    "none of the server's agents; did you mean 'adversary_0'? (adversary_0, adversary_1, "
    "adversary_2)",
    "qmix.groups={g: [adversary_0, adversary_1], h: [adversary_1]}": "agent 'adversary_1' is in "
    "the groups 'g' and 'h'; an agent can be in one only",
    "qmix.groups={g: []}": "group 'g' has no members",
    "qmix.groups={adversary_0: [adversary_1, adversary_2]}": "group 'adversary_0' has the name of "
    "an agent that is not its only member; rename the group",
    "qmix.groups={a/b: ['adversary_*']}": f"group 'a/b' {NO_FILE}",
    "ppo.policies={p: ['*']}": "policy 'p' cannot be shared by agent 'adversary_0' (observes "
    "Box(20,) float32, acts Discrete(5)) and agent 'agent_0' (observes Box(18,) float32, acts "
    "Discrete(5)): their spaces differ",
    "ppo.policies={p: ['adversary_*'], q: ['agent_*', agnt_1]}": "policy 'q' names 'agnt_1', which "
    "matches none of the server's agents; did you mean 'agent_1'? (adversary_0, adversary_1, "
    "adversary_2, agent_0, agent_1)",
    "ppo.policies={p: ['adversary_*'], q: ['agent_*'], r: [agent_1]}": "agent 'agent_1' is in the "
    "policies 'q' and 'r'; it can have one only",
    "ppo.policies={p: ['adversary_*'], q: [agent_0]}": "agent 'agent_1' has no policy; add it to "
    "one of p, q, or leave out 'policies'",
    "ppo.policies={p: ['adversary_*'], q: ['agent_*'], r: []}": "policy 'r' has no agents",
    "ppo.policies={p: ['adversary_*'], 'q:r': ['agent_*']}": f"policy 'q:r' {NO_FILE}",
    "qmix={groups: {g: ['adversary_*']}, policies: {p: [g, adversary_0]}}": "policy 'p' names "
    "'adversary_0', but agent 'adversary_0' acts as a member of group 'g', and members share one "
    "network, padded to the largest of their spaces; name the group",
    "qmix={groups: {g: ['adversary_[01]']}, policies: {p: ['*']}}": "policy 'p' cannot be shared "
    "by group 'g' (2 members, observations of 20, 5 actions) and agent 'adversary_2' (1 member, "
    "observations of 20, 5 actions): their spaces differ",
    "ppo.settings={gama: 0.9}": "PPO has no setting 'gama'; did you mean 'gamma'?",
    "ppo.model={fcnet_hidens: [3]}": "PPO has no model setting 'fcnet_hidens'; did you mean "
    "'fcnet_hiddens' or 'head_fcnet_hiddens'?",
}


@pytest.mark.parametrize(("override", "problem"), REFUSED.items())
def test_wrong_agents_groups_policies_and_settings_are_refused(override, problem):
    of_qmix = override.startswith("qmix")
    config = load_config(config_of(qmix() if of_qmix else ppo()), [f"servers.{override}"])
    with pytest.raises(ConfigError) as caught:
        resolve(config, TAG)
    assert caught.value.problems == [f"server {'qmix' if of_qmix else 'ppo'!r}: {problem}"]


def test_agents_of_no_server_or_of_two_are_refused():
    assert problems_of({"q": {"agents": ["ad*"]}, "r": {"agents": ["agent_0"]}}) == [
        "no server serves agent 'agent_1'; every agent needs one (servers are q, r)"
    ]
    (twice,) = problems_of({"q": {"agents": ["*"]}, "r": {"agents": ["agent_*"]}})
    served = "agents 'agent_0', 'agent_1' are served by 'q' and 'r'"
    assert twice == f"{served}; an agent belongs to exactly one server"


def test_an_action_space_that_an_algorithm_cannot_do_is_refused():
    facts = SimulationFacts({"a": DRIVER, "b": DRIVER})
    (problem,) = problems_of({"q": {"algorithm": "QMIX", "agents": ["*"]}}, facts)
    assert problem.startswith("server 'q': policy 'default': QMIX cannot do the action space Box")


def test_integer_observations_are_fine_because_servers_flatten_them():
    facts = SimulationFacts({"a": (Discrete(16), Discrete(4))})
    assert resolved(ppo(), facts)
    assert resolved({"q": {"algorithm": "QMIX", "agents": ["*"]}}, facts)


def test_default_policies_of_agents_whose_names_are_no_file_names():
    facts = SimulationFacts({"car/1": PREY, "car/2": PREDATOR})
    problems = problems_of(ppo(), facts)
    assert len(problems) == 2
    assert "'car/1' cannot name a file; name the policies under servers.ppo.policies" in problems[0]
    named = ppo(policies={"one": ["car/1"], "two": ["car/2"]})
    assert policies_of(resolved(named, facts), "ppo") == {"car/1": "one", "car/2": "two"}


def test_problems_of_all_servers_are_reported_together():
    servers = {
        "a": {"agents": ["adversary_*"], "settings": {"gama": 1}, "host": "0.0.0.0"},
        "b": {"algorithm": "QMX", "agents": ["agent_*"]},
    }
    assert len(problems_of(servers)) == 3


# --- properties and whole configs -------------------------------------------------------


NAMES = st.text("ab0_[]*?!", min_size=1, max_size=6).filter(lambda name: name != "???")
"""All names but the one that means an open key."""


@given(
    names=st.lists(NAMES, unique=True, max_size=8),
    cut=st.integers(0, 8),
)
@settings(max_examples=25)
def test_any_split_of_the_agents_by_name_covers_each_once(names, cut):
    facts = SimulationFacts(dict.fromkeys(names, PREY))
    parts = {"one": names[:cut], "two": names[cut:]}
    servers = {s: {"agents": list(part)} for s, part in parts.items() if part}
    if not servers:
        return
    experiment = resolved(servers, facts)
    served = [agent for plan in experiment.servers.values() for agent in plan.agents]
    assert sorted(served) == sorted(names)


def test_an_environment_that_cannot_be_made_is_reported_in_one_line():
    with pytest.raises(ConfigError) as caught:
        prepare(load_config("cartpole_ppo", ["simulation.env=nowhere:env"]))
    (problem,) = caught.value.problems
    assert re.match("simulation.env: 'nowhere:env': no module 'nowhere'", problem)


def test_a_packaged_config_resolves():
    assigned = "qmix:adversary_0,adversary_1,adversary_2|ppo:agent_0|a2c:agent_1"
    assert prepare(load_config("tag")).assignment == assigned


def test_local_inference_is_checked_as_the_client_would_refuse_it():
    teams = qmix(groups={"team": ["adversary_*"]})
    found = resolved(teams, simulation={"inference_mode": "local"})
    assert found.servers.keys() == {"qmix", "ppo"}
    lives = {"inference_mode": {"qmix": "local"}, "respawn": "same_id"}
    (problem,) = problems_of(teams, simulation=lives)
    assert "the server alone knows when a team's next life begins" in problem
    images = SimulationFacts({"a": (Box((20, 20, 3), "uint8", 0, 255), Discrete(3))}, None)
    for mode, servers, facts, words in (
        ("local", ppo(normalize_observations=True), TAG, "adversary_0' observes is scaled or norm"),
        ({"ppo": "local"}, ppo(model={"use_lstm": True}), TAG, "not one of PPO's default small"),
        ("local", ppo(), images, "not one of PPO's default small networks|is scaled or normalised"),
        ("local", ppo(algorithm="RANDOM"), TAG, "RANDOM does not learn, and has no weights"),
        ({"ppo": "local"}, ppo(algorithm="MAPPO"), TAG, "by more than what each of them observes"),
    ):
        (problem,) = problems_of(servers, facts, simulation={"inference_mode": mode})
        assert problem.startswith("simulation.inference_mode: server 'ppo' (")
        assert re.search(f"has no policies for local inference: .*({words})", problem)
        assert problem.endswith("leave it at inference_mode='remote'")
        other = {"ppo": "remote"} if isinstance(mode, dict) else "remote"
        found = resolved(servers, facts, simulation={"inference_mode": other})
        assert found.servers.keys() == {"ppo"}


@pytest.mark.parametrize("algorithm", ["HAPPO", "MAPPO", "QMIX", "PPO", "RANDOM"])
def test_agents_may_come_back_with_every_algorithm(algorithm):
    servers = {
        "all": {"algorithm": algorithm, "agents": ["adversary_*"]},
        "prey": {"agents": ["agent_*"]},
    }
    found = resolved(servers, simulation={"respawn": "same_id"})
    assert all(plan.agents_return for plan in found.servers.values())


@pytest.mark.parametrize("groups", [{}, {"team": ["adversary_*"]}])
def test_agents_that_come_back_are_refused_with_a_recurrent_network(groups):
    learner = {"algorithm": "MAPPO", "groups": groups, "model": {"use_lstm": True}}
    servers = {
        "all": {"agents": ["adversary_*"], **learner},
        "prey": {"algorithm": "RANDOM", "agents": ["agent_*"]},
    }
    lives = {"respawn": "same_id"}
    if groups:
        assert resolved(servers, simulation=lives).servers["all"].agents_return
    else:
        (problem,) = problems_of(servers, simulation=lives)
        assert "with use_lstm, the lives of an agent that comes" in problem
