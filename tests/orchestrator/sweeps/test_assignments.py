"""Products, lists and constraints become assignments, each once; mistakes are named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muxrl.orchestrator.sweeps.assignments import assignment_of, make_role_assignments
from muxrl.orchestrator.sweeps.schema import AssignmentsConfig

ROLES = {"hunters": ["h_0", "h_1"], "prey": ["p_0"]}
TEMPLATES = ["qmix", "ppo", "ppo_lstm", "random"]


def found(**config):
    problems = []
    made = make_role_assignments(AssignmentsConfig(**config), ROLES, TEMPLATES, problems)
    return [tuple(roles.values()) for roles in made], problems


BOTH = [(a, b) for a in TEMPLATES for b in TEMPLATES]
LISTED = [
    {"hunters": "qmix", "prey": "ppo"},
    "random:h_0,h_1|ppo:p_0",
    "ppo@hunters:h_0,h_1|ppo@prey:p_0",
    {"prey": "ppo", "hunters": "qmix"},
]


@pytest.mark.parametrize(
    ("config", "made"),
    [
        ({}, BOTH),
        (
            {"product": {"hunters": ["qmix", "ppo*"], "prey": ["random"]}},
            [("qmix", "random"), ("ppo", "random"), ("ppo_lstm", "random")],
        ),
        ({"product": {"hunters": ["qmix"]}}, BOTH[:4]),
        (
            {
                "product": {"hunters": ["qmix", "ppo"], "prey": ["ppo", "random"]},
                "exclude": [{"hunters": "qmix", "prey": "random"}],
            },
            [("qmix", "ppo"), ("ppo", "ppo"), ("ppo", "random")],
        ),
        (
            {"require": [{"hunters": "qmix", "prey": ["ppo", "random"]}, {"prey": "qmix"}]},
            [one for one in BOTH if one[1] == "qmix" or one in (BOTH[1], BOTH[3])],
        ),
        ({"listed": LISTED}, [("qmix", "ppo"), ("random", "ppo"), ("ppo", "ppo")]),
        (
            {
                "product": {"hunters": ["qmix"], "prey": ["ppo"]},
                "listed": ["ppo:h_0,h_1|qmix:p_0"],
            },
            [("qmix", "ppo"), ("ppo", "qmix")],
        ),
    ],
    ids=["all", "patterns", "left out", "excluded", "required", "listed once", "listed beside"],
)
def test_products_lists_and_conditions_make_assignments(config, made):
    assert found(**config) == (made, [])


@pytest.mark.parametrize(
    ("config", "story"),
    [
        ({"product": {"hunter": ["qmix"]}}, "there is no role 'hunter'; did you mean 'hunters'?"),
        ({"product": {"prey": ["qmx"]}}, "there is no algorithm 'qmx'; did you mean 'qmix'?"),
        ({"exclude": [{"prey": "sac"}]}, "there is no algorithm 'sac'; the sweep has qmix, ppo"),
        ({"exclude": [{"preys": "ppo"}]}, "there is no role 'preys'; did you mean 'prey'?"),
        ({"exclude": [{}]}, "assignments.exclude.0: is empty"),
        ({"exclude": [{"prey": "*"}]}, "none of the 16 is left after exclude and require"),
        ({"exclude": [{"prey": 3}]}, "must be the name of an algorithm, or a list of names, got 3"),
        ({"listed": [{"prey": "ppo"}]}, "gives no algorithm to the role 'hunters'"),
        (
            {"listed": [{"prey": "ppo*", "hunters": "qmix"}]},
            "names ppo, ppo_lstm; only one can serve",
        ),
        ({"listed": ["qmix:h_0|ppo:h_1,p_0"]}, "does not give all agents of the role 'hunters'"),
        ({"listed": ["qmix:h_0,h_1|ppo:p_0,x"]}, "expected 'qmix:h_0,h_1|ppo:p_0'"),
        (
            {"listed": ["ppo:h_0,h_1,p_0"]},
            "assigns other agents than the roles have; expected 'ppo@hunters:",
        ),
        ({"listed": ["qmix"]}, "is not of the form 'server:agent,agent'"),
        (
            {"listed": [4]},
            "assignments.listed.0: must be a mapping of roles to algorithms, or a str",
        ),
    ],
)
def test_mistakes_in_assignments_are_named(config, story):
    _, problems = found(**config)
    assert any(story in problem for problem in problems), problems


SOME = st.lists(st.sampled_from(TEMPLATES), unique=True, min_size=1)


@given(SOME, SOME, st.lists(st.fixed_dictionaries({"hunters": SOME, "prey": SOME}), max_size=3))
def test_all_assignments_differ_and_none_is_excluded(hunters, prey, exclude):
    made, _ = found(product={"hunters": hunters, "prey": prey}, exclude=exclude)
    names = [assignment_of(dict(zip(ROLES, roles, strict=True)), ROLES) for roles in made]
    assert len(set(names)) == len(names)
    for a, b in ((a, b) for a in hunters for b in prey):
        is_out = any(a in e["hunters"] and b in e["prey"] for e in exclude)
        assert ((a, b) in made) != is_out
