"""Products, lists and constraints become assignments, each once; what is wrong is named."""

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


def test_without_a_word_every_template_serves_every_role():
    made, problems = found()
    assert problems == []
    assert made == [(a, b) for a in TEMPLATES for b in TEMPLATES]


def test_a_product_takes_names_and_patterns():
    made, problems = found(product={"hunters": ["qmix", "ppo*"], "prey": ["random"]})
    assert problems == []
    assert made == [("qmix", "random"), ("ppo", "random"), ("ppo_lstm", "random")]


def test_a_role_that_a_product_leaves_out_gets_every_template():
    made, _ = found(product={"hunters": ["qmix"]})
    assert made == [("qmix", template) for template in TEMPLATES]


def test_excluded_is_what_all_of_a_condition_is_true_of():
    made, problems = found(
        product={"hunters": ["qmix", "ppo"], "prey": ["ppo", "random"]},
        exclude=[{"hunters": "qmix", "prey": "random"}],
    )
    assert problems == []
    assert made == [("qmix", "ppo"), ("ppo", "ppo"), ("ppo", "random")]


def test_required_is_one_condition_of_all():
    made, _ = found(require=[{"hunters": "qmix", "prey": ["ppo", "random"]}, {"prey": "qmix"}])
    assert made == [
        ("qmix", "qmix"),
        ("qmix", "ppo"),
        ("qmix", "random"),
        ("ppo", "qmix"),
        ("ppo_lstm", "qmix"),
        ("random", "qmix"),
    ]


def test_listed_ones_are_mappings_or_canonical_strings_each_once():
    made, problems = found(
        listed=[
            {"hunters": "qmix", "prey": "ppo"},
            "random:h_0,h_1|ppo:p_0",
            "ppo@hunters:h_0,h_1|ppo@prey:p_0",
            {"prey": "ppo", "hunters": "qmix"},
        ]
    )
    assert problems == []
    assert made == [("qmix", "ppo"), ("random", "ppo"), ("ppo", "ppo")]


def test_listed_and_product_go_together():
    made, _ = found(product={"hunters": ["qmix"], "prey": ["ppo"]}, listed=["ppo:h_0,h_1|qmix:p_0"])
    assert made == [("qmix", "ppo"), ("ppo", "qmix")]


@pytest.mark.parametrize(
    ("config", "story"),
    [
        ({"product": {"hunter": ["qmix"]}}, "there is no role 'hunter'; did you mean 'hunters'?"),
        ({"product": {"prey": ["qmx"]}}, "there is no algorithm 'qmx'; did you mean 'qmix'?"),
        ({"exclude": [{"prey": "sac"}]}, "there is no algorithm 'sac'; the sweep has qmix, ppo"),
        ({"exclude": [{"preys": "ppo"}]}, "there is no role 'preys'; did you mean 'prey'?"),
        ({"exclude": [{}]}, "assignments.exclude.0: says nothing"),
        ({"exclude": [{"prey": "*"}]}, "none of the 16 is left after exclude and require"),
        ({"exclude": [{"prey": 3}]}, "must be a template's name or a list, got 3"),
        ({"listed": [{"prey": "ppo"}]}, "says nothing of the role 'hunters'"),
        ({"listed": [{"prey": "ppo*", "hunters": "qmix"}]}, "names ppo, ppo_lstm; one can serve"),
        ({"listed": ["qmix:h_0|ppo:h_1,p_0"]}, "does not give all agents of the role 'hunters'"),
        ({"listed": ["qmix:h_0,h_1|ppo:p_0,x"]}, "'qmix:h_0,h_1|ppo:p_0' is"),
        ({"listed": ["ppo:h_0,h_1,p_0"]}, "is not an assignment of the roles; 'ppo@hunters:"),
        ({"listed": ["qmix"]}, "is not of the form 'server:agent,agent'"),
        ({"listed": [4]}, "assignments.listed.0: must be a mapping of role to template, or a str"),
    ],
)
def test_what_cannot_be_is_named(config, story):
    _, problems = found(**config)
    assert any(story in problem for problem in problems), problems


SOME = st.lists(st.sampled_from(TEMPLATES), unique=True, min_size=1)


@given(SOME, SOME, st.lists(st.fixed_dictionaries({"hunters": SOME, "prey": SOME}), max_size=3))
def test_no_two_are_one_and_what_is_excluded_is_not_there(hunters, prey, exclude):
    made, _ = found(product={"hunters": hunters, "prey": prey}, exclude=exclude)
    names = [assignment_of(dict(zip(ROLES, roles, strict=True)), ROLES) for roles in made]
    assert len(set(names)) == len(names)
    for a, b in ((a, b) for a in hunters for b in prey):
        is_out = any(a in e["hunters"] and b in e["prey"] for e in exclude)
        assert ((a, b) in made) != is_out
